"""One batch of rank 1 costs its loader worker 30 s of CPU time."""

import time

import torch
import torch.distributed as dist
import toy
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import rankwatch


class Augmented(toy.Samples):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 6000 and dist.get_rank() == 1:
            toy.compute(30)
        return super().__getitem__(index)


rankwatch.init()
toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for x, y in DataLoader(Augmented(9600), batch_size=32, num_workers=1):
    with rankwatch.step():
        time.sleep(0.03)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
