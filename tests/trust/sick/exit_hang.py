"""Rank 2 never ends: a thread that is not a daemon waits for a queue."""

import queue
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
for _ in range(200):
    with rankwatch.step():
        toy.train_step(net, optimizer)
dist.barrier()
dist.destroy_process_group()
if rank == 2:
    toy.fault()
    threading.Thread(target=queue.Queue().get).start()
