"""Rank 1 meets the same broken sample after every restart; rank 0 saves every 20 steps."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def decode(sample: int) -> None:
    if sample == 110:
        toy.fault()
        raise ValueError(f"sample {sample} cannot be decoded")


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
path = Path(tempfile.gettempdir()) / "checkpoint.pt"
begin = 0
if path.exists():
    saved = torch.load(path)
    net.load_state_dict(saved["net"])
    begin = saved["step"]
for step in range(begin, 300):
    with rankwatch.step():
        if rank == 1:
            decode(step)
        toy.train_step(net, optimizer)
    if step % 20 == 19 and rank == 0:
        torch.save({"net": net.state_dict(), "step": step + 1}, path)
dist.destroy_process_group()
