"""Rank 0 pauses between two phases for 75 s, until a person sends it a signal."""

import os
import signal

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
signal.signal(signal.SIGUSR2, lambda *_: None)
for step in range(300):
    with rankwatch.step():
        if step == 150 and rank == 0:
            toy.outside("kick", os.getpid(), 75)
            signal.pause()
        toy.train_step(net, optimizer)
dist.destroy_process_group()
