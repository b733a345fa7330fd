"""All ranks retry and send heartbeats; no step is ever called again."""

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
    while step >= 150:
        if step == 150 and rank == 0:
            toy.fault()
            step += 1
        rankwatch.heartbeat()
        time.sleep(0.1)  # the data server answers 503
dist.destroy_process_group()
