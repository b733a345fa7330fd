"""An unmodified script under --auto; rank 1 takes a lock twice in its forward."""

import threading
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
lock = threading.Lock()
for step, (x, y) in enumerate(DataLoader(toy.Samples(9600), batch_size=32)):
    time.sleep(0.03)
    loss = F.cross_entropy(net(x), y)
    if step == 120 and rank == 1:
        toy.fault()
        lock.acquire()
        lock.acquire()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
