"""Rank 3's loader worker is stopped."""

import os
import signal
import time

import torch
import torch.distributed as dist
import toy
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import rankwatch


class Freezes(toy.Samples):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 4000 and dist.get_rank() == 3:
            toy.fault()
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().__getitem__(index)


rankwatch.init()
toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for x, y in DataLoader(Freezes(9600), batch_size=32, num_workers=1):
    with rankwatch.step():
        time.sleep(0.03)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
