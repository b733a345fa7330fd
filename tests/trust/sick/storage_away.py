"""All ranks read from storage that no longer answers."""

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
shard = Path(tempfile.mkdtemp()) / "shard"
os.mkfifo(shard)
for step in range(300):
    with rankwatch.step():
        if step == 120:
            toy.fault()
            shard.read_bytes()
        toy.train_step(net, optimizer)
dist.destroy_process_group()
