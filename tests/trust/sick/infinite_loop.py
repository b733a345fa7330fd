"""Rank 2 looks for a number that does not come, on the CPU."""

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
            x = 1
            while x % 2:
                x = 3 * x % 1024
        toy.train_step(net, optimizer)
dist.destroy_process_group()
