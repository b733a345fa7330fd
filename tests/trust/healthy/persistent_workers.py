"""Persistent loader workers, a slow first batch of each epoch."""

import time

import torch
import torch.distributed as dist
import toy
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import rankwatch


class SlowStart(toy.Samples):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 0:
            time.sleep(8)  # opens its shard
        return super().__getitem__(index)


rankwatch.init()
toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(SlowStart(3200), batch_size=32, num_workers=1, persistent_workers=True)
for _ in range(3):
    for x, y in loader:
        with rankwatch.step():
            time.sleep(0.02)
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
dist.destroy_process_group()
