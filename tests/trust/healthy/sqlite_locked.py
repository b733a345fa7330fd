"""Rank 0 logs to a SQLite database that another job keeps locked for 75 s."""

import sqlite3
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
path = tempfile.gettempdir() + "/runs.db"
if rank == 0:
    runs = sqlite3.connect(path, timeout=600)
    runs.execute("CREATE TABLE loss (step INTEGER, value REAL)")
    runs.commit()
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step % 50 == 0 and rank == 0:
        if step == 150:
            toy.outside("database", path, 75)
        with runs:
            runs.execute("INSERT INTO loss VALUES (?, 0.0)", (step,))
dist.destroy_process_group()
