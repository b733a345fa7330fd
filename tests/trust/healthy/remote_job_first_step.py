"""Rank 1 compiles a kernel in a child process for 90 s, in the very first step."""

import subprocess
import sys

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
COMPILE = "import time; time.sleep(90); print('compiled')"
for step in range(300):
    with rankwatch.step():
        if step == 0 and rank == 1:
            subprocess.check_output([sys.executable, "-c", COMPILE])
        toy.train_step(net, optimizer)
dist.destroy_process_group()
