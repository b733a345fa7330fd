"""DistributedDataParallel, one step after the other."""

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(600):
    with rankwatch.step():
        loss = toy.train_step(net, optimizer)
    if rank == 0 and step % 100 == 0:
        print(f"step {step} loss {loss:.3f}")
dist.destroy_process_group()
