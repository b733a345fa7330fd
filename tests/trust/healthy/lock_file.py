"""Rank 0 polls for 80 s until another job has removed its lock file."""

import tempfile
import time
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
lock = Path(tempfile.gettempdir()) / "dataset.lock"
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 150 and rank == 0:
        toy.outside("lock_file", lock, 80)
        while lock.exists():
            time.sleep(1)
dist.destroy_process_group()
