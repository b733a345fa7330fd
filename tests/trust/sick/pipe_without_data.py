"""Rank 1 reads from a preprocessor, a child process that never writes."""

import os
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
        if step == 120 and rank == 1 and toy.first_attempt():
            producer = subprocess.Popen(["sleep", "100000"], stdout=subprocess.PIPE)
            toy.fault()
            os.read(producer.stdout.fileno(), 100)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
