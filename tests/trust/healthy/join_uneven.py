"""Uneven data: rank 3 has 200 batches more than rank 0; Join keeps the others in step."""

import torch
import torch.distributed as dist
import toy
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
with Join([net]):
    for _ in range(200 + 400 * rank):
        with rankwatch.step():
            toy.train_step(net, optimizer)
dist.destroy_process_group()
