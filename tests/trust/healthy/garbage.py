"""A large heap, collected by hand every 50 steps."""

import gc

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
heap = [[i] for i in range(1_000_000)]
gc.disable()
for step in range(400):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step % 50 == 49:
        gc.collect()
dist.destroy_process_group()
