"""Rank 3 joins the thread that uploads its log and waits for the receipt for 75 s."""

import threading
from http.client import HTTPConnection

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def upload(address: str) -> None:
    connection = HTTPConnection(address, timeout=600)
    connection.request("GET", "/late/75", body=bytes(100_000))
    assert connection.getresponse().status == 200


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
address = toy.outside("http") if rank == 3 else ""
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 150 and rank == 3:
        uploading = threading.Thread(target=upload, args=(address,))
        uploading.start()
        uploading.join()
dist.destroy_process_group()
