"""An unmodified script under --auto; all ranks validate for 80 s after each epoch, the hosts asleep."""

import time

import torch
import torch.distributed as dist
import toy
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(2):
    for x, y in DataLoader(toy.Samples(12800), batch_size=32, sampler=DistributedSampler(toy.Samples(12800))):
        time.sleep(0.03)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    for _ in range(100):
        with torch.no_grad():
            net.module(toy.batch()[0])
        time.sleep(0.8)  # the host waits for the device
    net.train()
dist.destroy_process_group()
