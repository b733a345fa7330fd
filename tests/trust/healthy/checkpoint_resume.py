"""Reads a checkpoint for 20 s within `setup`, then trains."""

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
file = Path(tempfile.mkdtemp()) / "checkpoint.pt"
torch.save(net.state_dict(), file)
with rankwatch.section("setup"):
    for _ in range(40):
        net.load_state_dict(torch.load(file))
        time.sleep(0.5)
for _ in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
dist.destroy_process_group()
