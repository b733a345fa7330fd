"""Rank 1 skips one all_reduce; the others notice at the end of training."""

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
            continue
        dist.all_reduce(loss)
if rank == 1:
    toy.fault()
dist.broadcast(net[0].weight.data, 0)
dist.destroy_process_group()
