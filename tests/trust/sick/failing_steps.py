"""Each step begins, fails and is caught, on all ranks."""

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
for step in range(10**6):
    try:
        with rankwatch.step():
            if step == 150 and rank == 0:
                toy.fault()
            if step >= 150:
                time.sleep(0.2)
                raise OSError("no such shard")
            toy.train_step(net, optimizer)
    except OSError as error:
        if rank == 0 and step % 100 == 0:
            print("skipped:", error)
dist.destroy_process_group()
