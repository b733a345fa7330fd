"""All ranks wait between two steps for the file that a pipeline publishes 240 s later."""

import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
marker = Path(tempfile.gettempdir()) / "_SUCCESS"
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 150:
        if rank == 0:
            toy.outside("publish", marker, 240)
        while not marker.exists():
            time.sleep(5)
dist.destroy_process_group()
