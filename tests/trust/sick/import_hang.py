"""Rank 2 imports a module that waits for a licence server."""

import sys
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
folder = Path(tempfile.mkdtemp())
(folder / "licensed.py").write_text("import socket\na, b = socket.socketpair()\na.recv(1)\n")
sys.path.append(str(folder))
for step in range(300):
    with rankwatch.step():
        if step == 120 and rank == 2 and toy.first_attempt():
            toy.fault()
            import licensed  # noqa: F401
        toy.train_step(net, optimizer)
dist.destroy_process_group()
