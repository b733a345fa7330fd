"""A thread of rank 0 writes checkpoints while training goes on; the next save waits 25 s for it."""

import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import toy
from torch.nn.parallel import DistributedDataParallel

import rankwatch


def write(state: dict[str, torch.Tensor], folder: Path, shards: int) -> None:
    for shard in range(shards):
        torch.save(state, folder / f"{shard}.pt")
        time.sleep(0.25)


rankwatch.init()
rank = toy.start()
net = DistributedDataParallel(toy.model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
folder, writer = Path(tempfile.mkdtemp()), None
for step in range(400):
    with rankwatch.step():
        toy.train_step(net, optimizer)
    if rank == 0 and step % 100 == 99:
        if writer is not None:
            writer.join()
        state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        writer = threading.Thread(target=write, args=(state, folder, 130 if step == 199 else 4))
        writer.start()
dist.destroy_process_group()
