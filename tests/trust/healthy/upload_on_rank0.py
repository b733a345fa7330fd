"""Rank 0 uploads an artifact for 30 s over a socket; the receiver is slow."""

import socket
import threading
import time

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def receive(server: socket.socket) -> None:
    connection, _ = server.accept()
    while connection.recv(1 << 14):
        time.sleep(0.1)


def upload(seconds: float) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=receive, args=(server,), daemon=True).start()
    end = time.monotonic() + seconds
    with socket.create_connection(server.getsockname()) as connection:
        while time.monotonic() < end:
            connection.sendall(bytes(1 << 14))


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(400):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 200 and rank == 0:
        upload(30)
dist.destroy_process_group()
