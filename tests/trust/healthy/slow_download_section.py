"""All ranks download their shards at 20 kB/s for 180 s, in a section."""

import tempfile
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
url = "http://" + toy.outside("http") + "/shard/3600000/20000"
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 150:
        with rankwatch.section("data"), tempfile.NamedTemporaryFile() as shard:
            urllib.request.urlretrieve(url, shard.name)
dist.destroy_process_group()
