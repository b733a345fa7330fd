"""Rank 3 waits for a simulator, a child process, for 180 s within its step."""

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
        if step == 150 and rank == 3:
            simulator = subprocess.Popen(["sleep", "180"])
            assert simulator.wait() == 0
        toy.train_step(net, optimizer)
dist.destroy_process_group()
