"""A loop with sections and no step."""

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(400):
    with rankwatch.section("forward-backward"):
        toy.train_step(net, optimizer)
dist.destroy_process_group()
