"""Rank 0 writes predictions to disk for 35 s, with fsync, between two steps."""

import os
import tempfile
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
for step in range(400):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 200 and rank == 0:
        end = time.monotonic() + 35
        with tempfile.TemporaryFile() as file:
            while time.monotonic() < end:
                file.seek(0)
                file.write(os.urandom(1 << 20))
                file.flush()
                os.fsync(file.fileno())
                time.sleep(0.2)  # a slow disk
dist.destroy_process_group()
