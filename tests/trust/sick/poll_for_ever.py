"""Rank 1 polls for a file that is never written."""

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
for step in range(300):
    with rankwatch.step():
        if step == 120 and rank == 1 and toy.first_attempt():
            toy.fault()
            while not Path("never-written").exists():
                time.sleep(0.2)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
