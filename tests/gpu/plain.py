"""A plain DDP script on the GPU, without a line of Rankwatch, as ``rankwatch run --auto`` meets it.

In the first attempt, after 60 steps, it waits in ``cudaStreamSynchronize`` for a kernel that does not end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[1]))
from gpu.rank import wait_in_synchronize


def main() -> None:
    """Train 120 steps with two forked loader processes."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 1)).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(120 * 32, 512))
    first = os.environ.get("RANKWATCH_ATTEMPT", "1") == "1"
    for number, (batch,) in enumerate(DataLoader(data, batch_size=32, num_workers=2, pin_memory=cuda)):
        loss = model(batch.to(device, non_blocking=True)).square().mean()
        loss.backward()
        if first and number == 60:
            wait_in_synchronize(cuda)
        optimizer.step()
        optimizer.zero_grad()
        if number % 20 == 0:
            print(f"step {number}, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
