"""Two epochs of a DataLoader with forked workers."""

import time

import torch
import torch.distributed as dist
import toy
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import rankwatch

rankwatch.init()
toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(toy.Samples(4000), batch_size=32, num_workers=1)
for _ in range(2):
    for x, y in loader:
        with rankwatch.step():
            time.sleep(0.03)
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
dist.destroy_process_group()
