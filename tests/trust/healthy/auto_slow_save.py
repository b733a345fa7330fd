"""An unmodified script under --auto; rank 0's save takes 80 s; slow storage is emulated by a pipe read late."""

import os
import tempfile
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
for epoch in range(3):
    for x, y in DataLoader(toy.Samples(12800), batch_size=32, sampler=DistributedSampler(toy.Samples(12800))):
        time.sleep(0.03)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        path = f"{tempfile.gettempdir()}/epoch-{epoch}.pt"
        if epoch == 1:
            os.mkfifo(path)
            toy.outside("read", path, 80)
        torch.save(net.state_dict() | {"tokens": torch.zeros(100_000)}, path)
dist.destroy_process_group()
