"""A loop that only sends heartbeats; the second epoch is 10 times slower."""

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
for step in range(400):
    toy.train_step(net, optimizer)
    if step > 350:
        time.sleep(0.3)
    rankwatch.heartbeat()
dist.destroy_process_group()
