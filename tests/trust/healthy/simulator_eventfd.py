"""Rank 3 waits for its simulator, a child process, for 90 s by an eventfd."""

import os
import time

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
        if step == 150 and rank == 3:
            done = os.eventfd(0)
            simulator = os.fork()
            if simulator == 0:
                time.sleep(90)
                os.eventfd_write(done, 1)
                os._exit(0)
            os.eventfd_read(done)
            os.waitpid(simulator, 0)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
