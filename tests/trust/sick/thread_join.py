"""Rank 0 joins a thread that waits for an event."""

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
        if step == 120 and rank == 0:
            toy.fault()
            thread = threading.Thread(target=threading.Event().wait, daemon=True)
            thread.start()
            thread.join()
        toy.train_step(net, optimizer)
dist.destroy_process_group()
