"""All ranks poll for the next shard, which comes 30 s later."""

import subprocess
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
shard = Path(tempfile.gettempdir()) / "next-shard"
for step in range(400):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 200:
        if rank == 0:
            subprocess.Popen(["sh", "-c", f"sleep 30; touch {shard}"])
        while not shard.exists():
            time.sleep(0.5)
dist.destroy_process_group()
