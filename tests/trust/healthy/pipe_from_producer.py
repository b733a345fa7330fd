"""Rank 1 reads its next samples from a preprocessor, a child process that writes after 85 s."""

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
        if step == 150 and rank == 1:
            producer = subprocess.Popen(["sh", "-c", "sleep 85; echo sample"], stdout=subprocess.PIPE)
            assert os.read(producer.stdout.fileno(), 100) == b"sample\n"
            producer.communicate()
        toy.train_step(net, optimizer)
dist.destroy_process_group()
