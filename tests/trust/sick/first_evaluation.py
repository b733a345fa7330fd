"""Rank 2 stands in the first evaluation."""

import queue

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
    if step == 150:
        with rankwatch.section("evaluation"):
            if rank == 2:
                toy.fault()
                queue.Queue().get()
            dist.barrier()
dist.destroy_process_group()
