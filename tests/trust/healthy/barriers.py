"""Four barriers in each step, and ranks that take turns."""

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
for _ in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
        for turn in range(4):
            if turn == rank:
                time.sleep(0.02)
            dist.barrier()
dist.destroy_process_group()
