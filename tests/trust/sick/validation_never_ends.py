"""Rank 0 waits for its device batch by batch and never reaches the end."""

import time

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def validate(done: bool) -> None:
    while not done:
        time.sleep(0.8)  # the flag that the device sets is never set


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 150 and rank == 0 and toy.first_attempt():
        toy.fault()
        validate(done=False)
dist.destroy_process_group()
