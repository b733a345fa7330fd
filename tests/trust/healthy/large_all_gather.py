"""Every 50 steps all ranks gather 64 MB of each."""

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
mine = torch.randn(16 << 20)
parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
        if step % 50 == 49:
            dist.all_gather(parts, mine)
dist.destroy_process_group()
