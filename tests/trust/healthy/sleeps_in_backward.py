"""A gradient hook of rank 2 sleeps for 80 s within the backward pass: it asks a service for the clipping norm."""

import time

import torch
import torch.distributed as dist
import toy
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
step = 0


def asks(gradient: Tensor) -> Tensor:
    time.sleep(80 if rank == 2 and step == 120 else 0)
    return gradient


next(iter(net.parameters())).register_hook(asks)
for step in range(300):  # noqa: B007 - the hook reads it
    with rankwatch.step():
        toy.train_step(net, optimizer)
dist.destroy_process_group()
