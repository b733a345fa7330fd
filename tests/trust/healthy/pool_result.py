"""Rank 2 waits within its step for a worker of its process pool, which sleeps for 80 s."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def score(sample: int) -> int:
    time.sleep(80 if sample == 150 else 0)  # its sandbox is started
    return sample


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork")) if rank == 2 else None
for step in range(300):
    with rankwatch.step():
        if pool is not None and step % 50 == 0:
            assert pool.submit(score, step).result() == step
        toy.train_step(net, optimizer)
if pool is not None:
    pool.shutdown()
dist.destroy_process_group()
