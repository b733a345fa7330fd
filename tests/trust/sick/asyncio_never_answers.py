"""Rank 1 awaits a judge that never answers, between two steps."""

import asyncio

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


async def judge(address: str) -> bytes:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /late/inf HTTP/1.0\r\n\r\n")
    return await reader.read()


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
address = toy.outside("http") if rank == 1 else ""
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 150 and rank == 1 and toy.first_attempt():
        toy.fault()
        asyncio.run(judge(address))
dist.destroy_process_group()
