"""Two ranks over gloo that take a few steps; the first attempt of rank 1 fails."""

import os

import torch
import torch.distributed as dist

import rankwatch

rankwatch.init()
dist.init_process_group("gloo")
for step in range(20):
    with rankwatch.step(step):
        value = torch.ones(1)
        dist.all_reduce(value)
    if step == 10 and dist.get_rank() == 1 and os.environ["RANKWATCH_ATTEMPT"] == "1":
        os._exit(7)
rankwatch.shutdown()
os._exit(0)  # gloo's threads sometimes abort an interpreter that ends
