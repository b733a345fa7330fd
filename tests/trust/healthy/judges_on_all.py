"""Each rank asks its own judge within its step; all of them take 75 s once, and again."""

import urllib.request

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
url = "http://" + toy.outside("http") + "/late/75"
for step in range(300):
    with rankwatch.step():
        if step in (120, 240):
            with urllib.request.urlopen(url, timeout=300) as answer:
                assert float(answer.read()) == 0.5
        toy.train_step(net, optimizer)
dist.destroy_process_group()
