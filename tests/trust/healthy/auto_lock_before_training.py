"""An unmodified script under --auto; rank 1 polls for another job's lock file for 75 s in its first batch."""

import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import toy
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
lock = Path(tempfile.gettempdir()) / "tokens.lock"
for step, (x, y) in enumerate(DataLoader(toy.Samples(9600), batch_size=32)):
    if step == 0 and rank == 1:
        toy.outside("lock_file", lock, 75)
        while lock.exists():
            time.sleep(0.5)
    time.sleep(0.03)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
