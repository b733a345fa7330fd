"""Rank 1 opens a pipe that no process reads."""

import os
import tempfile
from pathlib import Path

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
            toy.fault()
            path = Path(tempfile.mkdtemp()) / "pipe"
            os.mkfifo(path)
            path.write_text("metrics")
        toy.train_step(net, optimizer)
dist.destroy_process_group()
