"""All ranks read from storage that no longer answers: state D, emulated by vfork."""

import tempfile

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
path = f"{tempfile.gettempdir()}/shard-{rank}"
toy.outside("storage", path, "inf")
for step in range(300):
    with rankwatch.step():
        if step == 120:
            toy.fault()
            toy.wait_for_storage(path)
        toy.train_step(net, optimizer)
dist.destroy_process_group()
