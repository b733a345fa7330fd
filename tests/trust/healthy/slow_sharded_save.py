"""All ranks write their shards for 75 s, unmarked; slow storage is emulated by pipes read late."""

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
path = Path(tempfile.gettempdir()) / f"shard-{rank}"
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 150:
        os.mkfifo(path)
        toy.outside("read", path, 75)
        path.write_bytes(bytes(1_000_000))
dist.destroy_process_group()
