"""Rank 1 reduces in another group than the others; of its pair nobody knows the members, as gloo records none."""

import torch
import torch.distributed as dist
import toy

import rankwatch

rankwatch.init()
rank = toy.start()
net = toy.model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
pair = dist.new_group([0, 1])
for step in range(200):
    with rankwatch.step():
        loss = toy.train_step(net, optimizer)
        strays = step == 120 and rank == 1 and toy.first_attempt()
        if strays:
            toy.fault()
        dist.all_reduce(loss, group=pair if strays else None)
dist.destroy_process_group()
