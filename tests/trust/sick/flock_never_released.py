"""Rank 2 waits for a file that another job has locked and keeps."""

import fcntl
import tempfile

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
path = tempfile.gettempdir() + "/index.lock"
for step in range(300):
    with rankwatch.step():
        if step == 120 and rank == 2 and toy.first_attempt():
            toy.outside("flock", path, "inf")
            with open(path, "w") as index:
                toy.fault()
                fcntl.flock(index, fcntl.LOCK_EX)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
