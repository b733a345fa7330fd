"""Rank 0 waits for 40 s for an evaluation in a process of its own."""

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
EVALUATE = "import time; end = time.monotonic() + 40\nwhile time.monotonic() < end: sum(range(10000))"
for step in range(400):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 200 and rank == 0:
        subprocess.run([sys.executable, "-c", EVALUATE], check=True)
dist.destroy_process_group()
