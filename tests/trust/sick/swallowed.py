"""Rank 1's step raises, the error is swallowed, and rank 1 goes to the barrier of the next epoch."""

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
        if step == 120 and rank == 1:
            break
        loss = toy.train_step(net, optimizer)
        dist.all_reduce(loss)
if rank == 1:
    toy.fault()
dist.barrier()
dist.destroy_process_group()
