"""Rank 1 takes a lock twice in the backward of a function of its own."""

import threading
from typing import Any

import torch
import torch.distributed as dist
import toy
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import rankwatch

lock = threading.Lock()


class Locked(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        lock.acquire()
        return gradient


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(300):
    with rankwatch.step():
        if step == 120 and rank == 1:
            toy.fault()
            lock.acquire()
            Locked.apply(torch.ones(1, requires_grad=True)).backward()
        toy.train_step(net, optimizer)
dist.destroy_process_group()
