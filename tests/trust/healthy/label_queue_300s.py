"""Rank 1 waits for a batch of labels for 300 s within its step: one answer without a byte before."""

from http.client import HTTPConnection

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def labels(address: str) -> bytes:
    connection = HTTPConnection(address)
    connection.request("GET", "/late/300")
    return connection.getresponse().read()


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
address = toy.outside("http") if rank == 1 else ""
for step in range(300):
    with rankwatch.step():
        if step == 150 and rank == 1:
            labels(address)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
