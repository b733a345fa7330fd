"""Ranks 0 and 2 are stopped."""

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
for step in range(300):
    with rankwatch.step():
        if step == 120 and rank in (0, 2):
            toy.fault()
            os.kill(os.getpid(), signal.SIGSTOP)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
