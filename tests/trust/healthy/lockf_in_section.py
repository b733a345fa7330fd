"""Rank 0 waits for 90 s for the lock of the shared index, in the section of its checkpoint."""

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
path = tempfile.gettempdir() + "/index"
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step % 50 == 49:
        with rankwatch.section("checkpointing"):
            if rank == 0:
                if step == 149:
                    toy.outside("lockf", path, 90)
                with open(path, "a") as index:
                    fcntl.lockf(index, fcntl.LOCK_EX)
                    index.write(f"step {step}\n")
dist.destroy_process_group()
