"""Rank 3 polls for a lock file whose job has died."""

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
if rank == 3:
    lock.unlink(missing_ok=True)  # what an earlier attempt has met
for step in range(300):
    with rankwatch.step():
        if step == 120 and rank == 3 and toy.first_attempt():
            lock.touch()
            toy.fault()
            while lock.exists():
                time.sleep(1)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
