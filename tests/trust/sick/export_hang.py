"""After the last step rank 0 waits for ever, the others stand at a barrier."""

import threading

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch

rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(200):
    with rankwatch.step():
        toy.train_step(net, optimizer)
if rank == 0:
    toy.fault()
    threading.Event().wait()
dist.barrier()
dist.destroy_process_group()
