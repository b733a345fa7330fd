"""Rank 0 asks a reward service within each step; one answer takes 90 s."""

from http.client import HTTPConnection

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def reward(address: str, seconds: float) -> float:
    connection = HTTPConnection(address)
    connection.request("GET", f"/late/{seconds}")
    return float(connection.getresponse().read())


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
address = toy.outside("http") if rank == 0 else ""
for step in range(300):
    with rankwatch.step():
        value = torch.zeros(1)
        if rank == 0:
            value[0] = reward(address, 90 if step == 150 else 0)
        dist.broadcast(value, 0)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
