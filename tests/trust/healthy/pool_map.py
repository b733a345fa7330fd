"""Rank 3 scores generations with a multiprocessing pool for 80 s, in a section; its workers sleep."""

import multiprocessing
import time

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def score(generation: int) -> int:
    time.sleep(20)  # its sandbox runs the tests
    return generation % 2


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 150 and rank == 3:
        with rankwatch.section("scoring"), multiprocessing.get_context("fork").Pool(2) as pool:
            assert sum(pool.map(score, range(8), chunksize=1)) == 4
dist.destroy_process_group()
