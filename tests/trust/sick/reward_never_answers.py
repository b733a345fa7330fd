"""Rank 0 waits for one answer of a reward service that never comes."""

from http.client import HTTPConnection

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def reward(address: str, seconds: str) -> float:
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
            stalls = step == 120 and toy.first_attempt()
            if stalls:
                toy.fault()
            value[0] = reward(address, "inf" if stalls else "0")
        dist.broadcast(value, 0)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
