"""Somebody has left rank 0 in torch.distributed.breakpoint() and does not come back."""

import os

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
        if step == 120:
            if rank == 0:
                terminal = os.open(toy.outside("terminal", "inf", "c"), os.O_RDWR | os.O_NOCTTY)
                os.dup2(terminal, 0)
                toy.fault()
            dist.breakpoint(0)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
