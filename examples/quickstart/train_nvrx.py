"""Trains a small model, instrumented for nvidia-resiliency-ext and unchanged here; nvrx.sbatch runs it on Slurm."""

from pathlib import Path

import torch
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = Path("nvrx.pt")
STEPS = 600

watch = RankMonitorClient()
watch.init_workload_monitoring()
watch.start_section("setup")
distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.AdamW(model.parameters())
start = 0
if CHECKPOINT.exists():
    saved = torch.load(CHECKPOINT)
    model.module.load_state_dict(saved["model"])
    start = saved["step"]
watch.end_section("setup")

for step in range(start, STEPS):
    watch.start_section("step")
    batch = torch.randn(512, 256)
    (model(batch) - batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    watch.end_section("step")
    if step % 50 == 49:
        watch.start_section("checkpointing")
        if distributed.get_rank() == 0:
            torch.save({"model": model.module.state_dict(), "step": step + 1}, CHECKPOINT.with_suffix(".new"))
            CHECKPOINT.with_suffix(".new").replace(CHECKPOINT)
        distributed.barrier()
        watch.end_section("checkpointing")

watch.shutdown_workload_monitoring()
distributed.destroy_process_group()
