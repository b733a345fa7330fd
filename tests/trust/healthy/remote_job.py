"""Rank 0 waits for a job that it has submitted, as `sbatch --wait` does, for 75 s, twice."""

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
    if step in (120, 240) and rank == 0:
        subprocess.run(["sh", "-c", "echo submitted; sleep 75"], check=True)
dist.destroy_process_group()
