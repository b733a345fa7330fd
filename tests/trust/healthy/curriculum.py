"""Sequence length jumps: steps of 30 ms become steps of 6 s."""

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(306):
    with rankwatch.step():
        if step >= 300:
            toy.compute(6)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
