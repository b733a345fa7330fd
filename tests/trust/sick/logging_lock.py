"""Rank 2 logs while another thread holds the handler's lock."""

import logging
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
log, handler = logging.getLogger("train"), logging.StreamHandler()
log.addHandler(handler)
for step in range(300):
    with rankwatch.step():
        if step == 120 and rank == 2:
            toy.fault()
            handler.acquire()
            thread = threading.Thread(target=log.warning, args=("stuck",), daemon=True)
            thread.start()
            thread.join()
        toy.train_step(net, optimizer)
dist.destroy_process_group()
