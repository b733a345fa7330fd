"""Trains a small model with DistributedDataParallel, on CPUs or GPUs: rankwatch run --nproc-per-node 2 train_ddp.py."""

import os
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import rankwatch

CHECKPOINT = Path("ddp.pt")
STEPS = 600

rankwatch.init()
cuda = torch.cuda.is_available()
distributed.init_process_group("nccl" if cuda else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
model = DistributedDataParallel(torch.nn.Linear(256, 256).to(device))
optimizer = torch.optim.AdamW(model.parameters())

start = 0
if CHECKPOINT.exists():
    saved = torch.load(CHECKPOINT, map_location=device)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["step"]

for step in range(start, STEPS):
    with rankwatch.step(step):
        batch = torch.randn(512, 256, device=device)
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if (stop := rankwatch.should_stop()) or step % 50 == 49:
        with rankwatch.section("checkpointing"):
            if distributed.get_rank() == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                torch.save(state, CHECKPOINT.with_suffix(".new"))
                CHECKPOINT.with_suffix(".new").replace(CHECKPOINT)
            distributed.barrier()
    if stop:
        break
else:
    rankwatch.mark_complete()

if distributed.get_rank() == 0:
    print(f"step {step + 1}: loss {loss.item():.3f}")
distributed.destroy_process_group()
