"""A training script that does not know that it is watched: data-parallel, with an evaluation and checkpoints.

It trains ``--steps`` steps, goes on from the checkpoint in ``--folder`` if there is one, and leaves its loop on all
ranks after the same step once somebody has made the file ``finish`` there.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

RANK = int(os.environ["RANK"])
PACE = 0.02  # seconds that reading a batch takes


class Batches(Dataset):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(PACE)
        generator = torch.Generator().manual_seed(index)
        inputs = torch.randn(8, generator=generator)
        return inputs, inputs.sum(0, keepdim=True)


def evaluate(model: nn.Module) -> None:
    with torch.no_grad():
        for inputs, _ in DataLoader(Batches(), batch_size=10):
            model(inputs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    checkpoint, finish = options.folder / "checkpoint.pt", options.folder / "finish"

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    step = 0
    if checkpoint.exists():
        kept = torch.load(checkpoint)
        model.module.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    print(f"<rank {RANK} begins with step {step}>", flush=True)
    done = False
    while not done:
        for inputs, targets in DataLoader(Batches(), batch_size=1, num_workers=options.workers):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            step += 1
            asked = torch.tensor(float(finish.exists()))
            dist.all_reduce(asked)
            done = step >= options.steps or bool(asked)
            if step % 10 == 0 or done:
                if RANK == 0:
                    kept = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(kept, checkpoint.with_suffix(".new"))
                    checkpoint.with_suffix(".new").replace(checkpoint)
                dist.barrier()
            if done:
                break
        evaluate(model)
    print(f"<rank {RANK} ends with step {step}>", flush=True)
    os._exit(0)  # gloo's threads sometimes abort an interpreter that shuts down


if __name__ == "__main__":
    main()
