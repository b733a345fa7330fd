"""Rank 0 waits for a queue that a server in a thread fills from actors, who connect for each sample; once for 90 s."""

import queue
import socket
import threading

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def serve(server: socket.socket, samples: queue.Queue[bytes]) -> None:
    while True:
        connection, _ = server.accept()
        with connection:
            samples.put(connection.recv(64))


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
samples: queue.Queue[bytes] = queue.Queue(4)
if rank == 0:
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(server, samples), daemon=True).start()
    toy.outside("actor", server.getsockname()[1], 90)
for _ in range(300):
    with rankwatch.step():
        if rank == 0:
            samples.get()
        toy.train_step(net, optimizer)
dist.destroy_process_group()
