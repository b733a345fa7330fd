"""Rank 2's loader worker waits for a sample that its store never sends."""

import time
from http.client import HTTPConnection

import torch
import torch.distributed as dist
import toy
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import rankwatch


class Remote(toy.Samples):
    address = ""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 4800 and self.address and toy.first_attempt():
            toy.fault()
            connection = HTTPConnection(self.address)
            connection.request("GET", "/late/inf")
            connection.getresponse()
        return super().__getitem__(index)


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
samples = Remote(9600)
samples.address = toy.outside("http") if rank == 2 else ""
for x, y in DataLoader(samples, batch_size=32, num_workers=1, prefetch_factor=1):
    with rankwatch.step():
        time.sleep(0.03)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
