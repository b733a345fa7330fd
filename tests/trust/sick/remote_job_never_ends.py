"""Rank 0 waits for a submitted job that stays in the queue for ever."""

import subprocess

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
    if step == 150 and rank == 0 and toy.first_attempt():
        toy.fault()
        subprocess.run(["sh", "-c", "while true; do sleep 2; done"], check=True)
dist.destroy_process_group()
