"""Rank 2 waits for 85 s for a slot of a service beside the job, by a semaphore in shared memory."""

import multiprocessing
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
slots = multiprocessing.Semaphore(0)
for step in range(300):
    with rankwatch.step():
        if step == 150 and rank == 2:
            owner = os.getpid()
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    for _ in range(85):
                        time.sleep(1)
                        os.kill(owner, 0)  # it ends with the rank
                    slots.release()
                os._exit(0)
            os.wait()
            slots.acquire()
        toy.train_step(net, optimizer)
dist.destroy_process_group()
