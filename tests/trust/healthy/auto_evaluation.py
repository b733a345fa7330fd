"""An unmodified script under --auto; all ranks evaluate for 25 s after an epoch."""

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

for _ in range(2):
    for x, y in DataLoader(toy.Samples(4000), batch_size=32):
        time.sleep(0.03)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    end = time.monotonic() + 25
    with torch.no_grad():
        while time.monotonic() < end:
            net.module(toy.batch(512)[0])
    net.train()
dist.destroy_process_group()
