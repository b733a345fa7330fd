"""Rank 1 spaces its requests with asyncio.sleep, for 90 s between two steps."""

import asyncio

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


async def annotate(requests: int) -> None:
    for _ in range(requests):
        await asyncio.sleep(30)  # two requests a minute are allowed


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 150 and rank == 1:
        asyncio.run(annotate(3))
dist.destroy_process_group()
