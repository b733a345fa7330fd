"""Rank 2 waits for a program that does nothing."""

import subprocess

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
        if step == 120 and rank == 2 and toy.first_attempt():
            toy.fault()
            subprocess.run(["sleep", "100000"])
        toy.train_step(net, optimizer)
dist.destroy_process_group()
