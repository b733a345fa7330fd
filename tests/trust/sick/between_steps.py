"""Rank 1 waits for a lock between two steps."""

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
        toy.train_step(net, optimizer)
    if step == 150 and rank == 1:
        toy.fault()
        lock.acquire()
        lock.acquire()
dist.destroy_process_group()
