"""Rank 0 draws plots and writes logs for 3 s every 60 steps."""

import time

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(480):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if rank == 0 and step % 60 == 59:
        print("step", step)
        time.sleep(3)
dist.destroy_process_group()
