"""Rank 2's download stalls in the middle: no byte arrives any more."""

import urllib.request

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
    if step == 150 and rank == 2 and toy.first_attempt():
        with urllib.request.urlopen(f"http://{toy.outside('http')}/shard/100000/50000/50000") as shard:
            shard.read(40_000)
            toy.fault()
            shard.read()
dist.destroy_process_group()
