"""All ranks save within `checkpointing`: 0.1 s each time, once 30 s."""

import tempfile
import time
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
folder = Path(tempfile.mkdtemp())
for step in range(400):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step % 50 == 49:
        with rankwatch.section("checkpointing"):
            for shard in range(60 if step == 249 else 1):
                torch.save(net.state_dict(), folder / f"{rank}-{shard}.pt")
                time.sleep(0.5 if step == 249 else 0.1)
dist.destroy_process_group()
