"""All ranks wait for 80 s for the lock of a kernel cache, held by another job, in the first step."""

import fcntl
import tempfile

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def compiled(path: str) -> None:
    with open(path, "w") as cache:
        fcntl.flock(cache, fcntl.LOCK_EX)


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
path = tempfile.gettempdir() + "/kernels.lock"
if rank == 0:
    toy.outside("flock", path, 80)
dist.barrier()
for step in range(300):
    with rankwatch.step():
        if step == 0:
            compiled(path)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
