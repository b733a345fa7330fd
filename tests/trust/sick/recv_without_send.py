"""Rank 0 waits for a message that rank 1 never sends; the others reduce."""

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
        if step == 120 and rank == 0 and toy.first_attempt():
            toy.fault()
            dist.recv(torch.zeros(1), 1)
        dist.all_reduce(loss)
dist.destroy_process_group()
