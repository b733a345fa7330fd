"""An unmodified script under --auto; rank 0 waits for a child process for 75 s after each of two epochs."""

import subprocess
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
    if epoch < 2 and rank == 0:
        subprocess.run(["sleep", "75"], check=True)
dist.destroy_process_group()
