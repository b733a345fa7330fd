"""Rank 0 saves 20 shards, 1.5 s each, between two steps, without a section."""

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
folder = Path(tempfile.mkdtemp())
for step in range(400):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 200 and rank == 0:
        for shard in range(20):
            torch.save(net.state_dict(), folder / f"{shard}.pt")
            time.sleep(1.5)  # a slow disk
dist.destroy_process_group()
