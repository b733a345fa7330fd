"""Rank 0's save stands in its section after fast ones; storage is emulated by a pipe that is never read."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
folder = Path(tempfile.gettempdir())
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step % 20 == 19:
        with rankwatch.section("checkpointing"):
            if rank == 0:
                path = folder / f"step-{step}.pt"
                path.unlink(missing_ok=True)  # a pipe of the attempt before
                if step == 159 and toy.first_attempt():
                    os.mkfifo(path)
                    toy.outside("read", path, "inf")
                    toy.fault()
                torch.save(net.state_dict() | {"tokens": torch.zeros(100_000)}, path)
                path.unlink()
dist.destroy_process_group()
