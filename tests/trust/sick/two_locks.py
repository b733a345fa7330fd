"""Ranks 1 and 3 wait for a lock each."""

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
        if step == 120 and rank in (1, 3):
            toy.fault()
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        toy.train_step(net, optimizer)
dist.destroy_process_group()
