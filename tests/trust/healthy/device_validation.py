"""Rank 0 validates on its device, the host asleep: 100 batches of 0.8 s, twice."""

import time

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def validate(batches: int) -> None:
    for _ in range(batches):
        time.sleep(0.8)  # the host waits for the device


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step in (120, 240) and rank == 0:
        validate(100)
dist.destroy_process_group()
