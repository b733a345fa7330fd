"""Rank 0 opens a pipe that no process reads, in the first checkpoint."""

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
path = Path(tempfile.mkdtemp()) / "checkpoint.pt"
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 150:
        with rankwatch.section("checkpointing"):
            if rank == 0 and toy.first_attempt():
                os.mkfifo(path)
                toy.fault()
                torch.save(net.state_dict(), path)
dist.destroy_process_group()
