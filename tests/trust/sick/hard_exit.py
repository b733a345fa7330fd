"""Rank 3 ends its process with exit code 0 in the middle of training, as an early return of a sweep does."""

import os

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
        if step == 120 and rank == 3:
            toy.fault()
            os._exit(0)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
