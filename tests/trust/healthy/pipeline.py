"""A pipeline of four stages over send and recv; the last stage does twice the work."""

import time

import torch
import torch.distributed as dist
import toy

import rankwatch

rankwatch.init()
rank = toy.start()
last = dist.get_world_size() - 1
for _ in range(300):
    with rankwatch.step():
        for _ in range(2):  # micro-batches
            activations = torch.randn(64, 64)
            if rank > 0:
                dist.recv(activations, rank - 1)
            time.sleep(0.02 if rank == last else 0.01)
            if rank < last:
                dist.send(activations @ activations, rank + 1)
dist.barrier()
dist.destroy_process_group()
