"""The first batch costs every rank 25 s of CPU time."""

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
        if step == 0:
            toy.compute(25)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
