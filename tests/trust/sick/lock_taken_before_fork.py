"""Rank 3 waits for a child that was forked while another thread held a lock."""

import os
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
        if step == 120 and rank == 3 and toy.first_attempt():
            toy.fault()
            lock.acquire()
            child = os.fork()
            if child == 0:
                lock.acquire()
                os._exit(0)
            lock.release()
            os.waitpid(child, 0)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
