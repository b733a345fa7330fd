"""Rank 1's signal handler takes the lock that the interrupted code holds."""

import signal
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
signal.signal(signal.SIGUSR1, lambda *_: lock.acquire())
for step in range(300):
    with rankwatch.step():
        if step == 120 and rank == 1:
            toy.fault()
            with lock:
                signal.raise_signal(signal.SIGUSR1)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
