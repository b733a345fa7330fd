"""Rank 2 raises at the same step in every attempt; nothing is saved."""

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(300):
    with rankwatch.step():
        if step == 120 and rank == 2:
            toy.fault()
            raise IndexError("index 50257 is out of bounds for dimension 0 with size 50257")
        toy.train_step(net, optimizer)
dist.destroy_process_group()
