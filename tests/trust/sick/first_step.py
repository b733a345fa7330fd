"""Rank 1 stands in the very first step."""

import threading

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
        if step == 0 and rank == 1:
            toy.fault()
            threading.Lock().acquire() and threading.Event().wait()
        toy.train_step(net, optimizer)
dist.destroy_process_group()
