"""Rank 0 is told 429 by an API for ever and backs off for 1, 2, 4, 8, 8, ... s."""

import time
from http.client import HTTPConnection

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def log_metrics(address: str) -> None:
    delay = 1.0
    while True:
        connection = HTTPConnection(address, timeout=30)
        connection.request("GET", "/busy/inf")
        if connection.getresponse().status == 200:
            return
        connection.close()
        time.sleep(delay)
        delay = min(2 * delay, 8)


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
address = toy.outside("http") if rank == 0 else ""
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 150 and rank == 0 and toy.first_attempt():
        toy.fault()
        log_metrics(address)
dist.destroy_process_group()
