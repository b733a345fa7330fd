"""All ranks evaluate and reduce a metric every second batch; no section, no step, for 30 s."""

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
for _epoch in range(2):
    for _ in range(200):
        with rankwatch.step():
            toy.train_step(net, optimizer)
    for _ in range(60):
        with torch.no_grad():
            correct = (net.module(toy.batch(256)[0]).argmax(1) == 3).sum()
        time.sleep(0.5)
        dist.all_reduce(correct)
dist.destroy_process_group()
