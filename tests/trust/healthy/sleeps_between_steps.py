"""Rank 0 sleeps for 80 s between two steps, twice: an evaluation whose time passes elsewhere."""

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
        toy.train_step(net, optimizer)
    if step in (120, 240) and rank == 0:
        time.sleep(80)  # the evaluation service has been told; its answer is known to be there then
dist.destroy_process_group()
