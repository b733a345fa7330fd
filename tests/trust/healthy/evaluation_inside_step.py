"""Rank 0 evaluates for 40 s inside its step; the others wait in the all_reduce of the same step."""

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(400):
    with rankwatch.step():
        if step == 200 and rank == 0:
            print("accuracy", toy.compute(40))
        toy.train_step(net, optimizer)
dist.destroy_process_group()
