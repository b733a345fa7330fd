"""Rank 1 skips an all_reduce and goes to a barrier."""

import torch
import torch.distributed as dist
import toy

import rankwatch

rankwatch.init()
rank = toy.start()
net = toy.model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(200):
    with rankwatch.step():
        loss = toy.train_step(net, optimizer)
        if step == 120 and rank == 1:
            toy.fault()
            dist.barrier()
        else:
            dist.all_reduce(loss)
dist.destroy_process_group()
