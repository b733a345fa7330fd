"""Rank 0 tokenizes for 30 s before the first step, the others wait at a barrier."""

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
if rank == 0:
    toy.compute(30)
dist.barrier()
for _ in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
dist.destroy_process_group()
