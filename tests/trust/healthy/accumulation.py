"""Gradient accumulation: one update in 8 batches, no_sync in between."""

import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import toy
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(60):
    with rankwatch.step():
        for part in range(8):
            with net.no_sync() if part < 7 else nullcontext():
                x, y = toy.batch()
                time.sleep(0.02)
                (F.cross_entropy(net(x), y) / 8).backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
