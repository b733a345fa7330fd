"""Rank 0 gathers the answers of four judges with asyncio, for 85 s."""

import asyncio

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


async def judge(address: str, seconds: float) -> bytes:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /late/{seconds} HTTP/1.0\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


async def judges(address: str) -> list[bytes]:
    return await asyncio.gather(*(judge(address, seconds) for seconds in (5, 30, 60, 85)))


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
address = toy.outside("http") if rank == 0 else ""
for step in range(300):
    with rankwatch.step():
        if step == 150 and rank == 0:
            assert len(asyncio.run(judges(address))) == 4
        toy.train_step(net, optimizer)
dist.destroy_process_group()
