"""Rank 1 waits for a lock in shared memory whose holder has ended."""

import multiprocessing
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
lock = multiprocessing.Lock()
for step in range(300):
    with rankwatch.step():
        if step == 120 and rank == 1 and toy.first_attempt():
            toy.fault()
            if os.fork() == 0:
                lock.acquire()
                os._exit(1)
            os.wait()
            lock.acquire()
        toy.train_step(net, optimizer)
dist.destroy_process_group()
