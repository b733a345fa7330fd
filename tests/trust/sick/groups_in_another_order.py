"""Rank 1 once uses two groups in another order than rank 0, so that each waits for the other."""

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
pair, all_ranks = dist.new_group([0, 1]), dist.new_group()
for step in range(300):
    with rankwatch.step():
        loss = toy.train_step(net, optimizer)
        groups = [pair, all_ranks] if rank < 2 else [all_ranks]
        if step == 120 and rank == 1:
            toy.fault()
            groups.reverse()
        for group in groups:
            dist.all_reduce(loss, group=group)
dist.destroy_process_group()
