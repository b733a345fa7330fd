"""The thread that writes rank 0's checkpoints stands; the next save joins it."""

import queue
import threading

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
writer = None
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if rank == 0 and step in (100, 150):
        if writer is not None:
            toy.fault()
            writer.join()
        writer = threading.Thread(target=queue.Queue().get, daemon=True)
        writer.start()
dist.destroy_process_group()
