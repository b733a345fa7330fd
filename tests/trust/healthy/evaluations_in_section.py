"""Rank 0 evaluates in a child process within a section, for 80 s, twice."""

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
        toy.train_step(net, optimizer)
    if step in (120, 240):
        with rankwatch.section("evaluation"):
            if rank == 0:
                subprocess.run("for batch in 1 2 3 4 5 6 7 8; do sleep 10; done", shell=True, check=True)
            dist.barrier()
dist.destroy_process_group()
