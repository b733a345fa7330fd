"""After fast saves one takes 100 s in its section; slow storage is emulated by a pipe read late."""

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
for step in range(400):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step % 40 == 39:
        with rankwatch.section("checkpointing"):
            if rank == 0:
                path = folder / f"step-{step}.pt"
                if step == 319:
                    os.mkfifo(path)
                    toy.outside("read", path, 100)
                torch.save(net.state_dict() | {"tokens": torch.zeros(100_000)}, path)
dist.destroy_process_group()
