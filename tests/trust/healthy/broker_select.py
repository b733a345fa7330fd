"""Rank 0 waits for a message of its broker with select and a timeout of 5 s, for 85 s."""

import select
import socket

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def next_message(address: str) -> bytes:
    host, port = address.split(":")
    with socket.create_connection((host, int(port))) as broker:
        broker.sendall(b"GET /late/85 HTTP/1.0\r\n\r\n")
        while not select.select([broker], [], [], 5)[0]:
            print("no message yet")
        return broker.recv(1000)


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
address = toy.outside("http") if rank == 0 else ""
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 150 and rank == 0:
        assert next_message(address)
dist.destroy_process_group()
