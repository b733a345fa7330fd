"""Rank 0 waits for the fsync of its checkpoint for 90 s, in its section: state D, emulated by vfork."""

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
path = f"{tempfile.gettempdir()}/shard-{rank}"
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step % 50 == 49:
        with rankwatch.section("checkpointing"):
            if rank == 0 and step == 199:
                toy.outside("storage", path, 90)
                toy.wait_for_storage(path)
dist.destroy_process_group()
