"""Rank 3 retries a download that always fails."""

import socket
import time

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
        if step == 120 and rank == 3 and toy.first_attempt():
            toy.fault()
            while True:
                try:
                    socket.create_connection(("127.0.0.1", 9), timeout=1)
                except OSError:
                    time.sleep(0.5)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
