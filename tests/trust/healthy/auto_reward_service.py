"""An unmodified script under --auto; rank 1 asks a service for each batch, one answer takes 90 s."""

import time
from http.client import HTTPConnection

import torch
import torch.distributed as dist
import toy
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def difficulty(address: str, seconds: float) -> float:
    connection = HTTPConnection(address, timeout=600)
    connection.request("GET", f"/late/{seconds}")
    return float(connection.getresponse().read())


rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
address = toy.outside("http") if rank == 1 else ""
for step, (x, y) in enumerate(DataLoader(toy.Samples(9600), batch_size=32)):
    if rank == 1:
        x *= difficulty(address, 90 if step == 150 else 0)
    time.sleep(0.03)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
