"""Rank 2 sees a new shape and compiles for 30 s in the middle of training."""

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
        if step == 200 and rank == 2:
            toy.compute(30)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
