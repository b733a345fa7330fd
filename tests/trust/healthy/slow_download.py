"""Rank 0 downloads a shard at 20 kB/s for 80 s between two steps."""

import socket

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def download(address: str, size: int, rate: int) -> int:
    host, port = address.split(":")
    received = 0
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"GET /shard/{size}/{rate} HTTP/1.0\r\n\r\n".encode())
        while piece := connection.recv(1 << 16):
            received += len(piece)
    return received


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
address = toy.outside("http") if rank == 0 else ""
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 150 and rank == 0:
        assert download(address, 1_600_000, 20_000) > 1_600_000
dist.destroy_process_group()
