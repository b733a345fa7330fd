"""An unmodified script under --auto; rank 0 computes metrics for 30 s between two steps, without torch modules."""

import time

import torch
import torch.distributed as dist
import toy
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

for epoch in range(2):
    for x, y in DataLoader(toy.Samples(4000), batch_size=32):
        time.sleep(0.03)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print("epoch", epoch, "metrics", toy.compute(30))
dist.destroy_process_group()
