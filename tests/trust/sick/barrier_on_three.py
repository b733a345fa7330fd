"""Ranks 0 to 2 go to a barrier, rank 3 does not and reduces."""

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
        if step == 120 and rank != 3:
            dist.barrier()
        elif step == 120:
            toy.fault()
        dist.all_reduce(loss)
dist.destroy_process_group()
