"""Rank 1 reduces a tensor of another size."""

import torch
import torch.distributed as dist
import toy

import rankwatch

rankwatch.init()
rank = toy.start()
net = toy.model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(200):
    with rankwatch.step():
        loss = toy.train_step(net, optimizer)
        if step == 120 and rank == 1:
            toy.fault()
            loss = torch.zeros(4096)
        dist.all_reduce(loss)
dist.destroy_process_group()
