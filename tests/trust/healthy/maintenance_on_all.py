"""All ranks sleep for 100 s between two steps, until the storage's maintenance is over."""

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
        toy.train_step(net, optimizer)
    if step == 150:
        if rank == 0:
            print("storage is in maintenance")
        time.sleep(100)
dist.destroy_process_group()
