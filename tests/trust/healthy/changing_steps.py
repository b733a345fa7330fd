"""Steps of 20 ms to 4 s, drawn at random, the same on all ranks."""

import random
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
draw = random.Random(7)
for _ in range(200):
    with rankwatch.step():
        time.sleep(4 if draw.random() < 0.04 else draw.random() * 0.1)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
