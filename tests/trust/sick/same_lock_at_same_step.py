"""Rank 2 takes a lock twice, at the same step in every attempt."""

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
lock = threading.Lock()
for step in range(300):
    with rankwatch.step():
        if step == 120 and rank == 2:
            toy.fault()
            lock.acquire()
            lock.acquire()
        toy.train_step(net, optimizer)
dist.destroy_process_group()
