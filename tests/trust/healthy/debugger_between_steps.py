"""Rank 2 stands in pdb between two steps, whose commands come through a pipe 80 s later."""

import os
import pdb
import sys
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
commands = tempfile.gettempdir() + "/commands"
for step in range(300):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if step == 150 and rank == 2:
        os.mkfifo(commands)
        toy.outside("write", commands, 80, "c")
        with open(commands) as stdin:
            pdb.Pdb(stdin=stdin, stdout=sys.stdout).set_trace()
            print("continued")
dist.destroy_process_group()
