"""Two real ranks that train with DistributedDataParallel over gloo, one of them slow in a way that is asked for."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.forked import ForkedPopen

ROOT = Path(__file__).parents[3]

PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
import rankwatch
rank, store, kind = int(os.environ["RANK"]), sys.argv[1], sys.argv[2]
slow = kind if rank == 1 else ""
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
rankwatch.init()

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        if slow == "host":
            time.sleep(0.1)
        if slow == "compute":
            end = time.monotonic() + 0.1
            much = torch.ones(300, 300)
            while time.monotonic() < end:
                much @ much
        return gradient

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    def forward(self, x):
        return Slow.apply(self.layers(x))

model = torch.nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    with rankwatch.step():
        with rankwatch.section("data"):
            if slow == "data":
                time.sleep(0.1)
            batch = torch.randn(16, 64)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@contextlib.contextmanager
def training_ranks(folder: Path, monitor: str, slow: str, **variables: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Ranks 0 and 1; rank 1 is slow: ``host`` or ``compute`` in its backward, ``data`` in its input; ``""``: no."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RANKWATCH_", "TORCH", "OTEL_"))}
    env |= {"PYTHONPATH": str(ROOT / "telemetry"), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    env |= {"RANKWATCH_MONITOR": monitor, "RANKWATCH_JOB_ID": "pair", "RANKWATCH_EXPORT_INTERVAL": "0.2", **variables}
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(2):
            with (folder / f"{rank}.log").open("wb") as log:
                command = [sys.executable, "-c", PROGRAM, str(folder / "store"), slow]
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                ranks.append(ForkedPopen(command, env=env | own, stdout=log, stderr=subprocess.STDOUT))
        yield ranks
    finally:
        for process in ranks:
            process.kill()
        for process in ranks:
            process.wait(10)
