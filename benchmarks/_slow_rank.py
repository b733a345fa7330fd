"""A rank of ``slow_jobs.py``: trains a small model; after some seconds one rank becomes slow in one way.

    _slow_rank.py KIND RANK SECONDS-BEFORE SECONDS-IN-ALL [unmodified]

``unmodified``: as a script for ``--auto``, without a line of Rankwatch.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import toy
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

KIND, SLOW_RANK, BEFORE, LASTS = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
LOSES = 0.06
"""Seconds of a step that the slow rank takes more, about; a step takes 60 ms by itself on an idle machine."""
PRODUCTS = 12
"""Matrix products of a step besides the model."""
AGREED_EVERY = 8
MATRIX = torch.randn(160, 160)


class Batches(IterableDataset[tuple[Tensor, Tensor]]):
    """Batches without end; on the slow rank reading one takes long from some time on."""

    def __init__(self, slow_from: float) -> None:
        self.slow_from = slow_from

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            time.sleep(0.005 if time.time() < self.slow_from else 2 * LOSES)
            yield toy.batch()


def work(times: float) -> None:
    """Computation of a fixed amount."""
    for _ in range(round(PRODUCTS * times)):
        MATRIX @ MATRIX


class Fault:
    """What makes this rank slow, once in each step."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.log = logging.getLogger("steps")
        self.log.propagate = False
        if KIND == "logging":
            self.log.addHandler(logging.FileHandler("steps.log"))

    def begin(self) -> None:
        """Start what lasts."""
        if KIND == "cpu":
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            loop = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
            self.kept = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(3)]
        elif KIND == "checkpoint":
            threading.Thread(target=self.save, daemon=True).start()
        elif KIND == "garbage":
            self.kept = [[each] for each in range(400_000)]

    def save(self) -> None:
        """Serialize in Python, beside the training."""
        state = [{"name": str(number), "values": list(range(20))} for number in range(20_000)]
        while True:
            with open("checkpoint.json", "w") as file:
                json.dump(state, file, indent=1)

    def step(self) -> None:
        """What happens in each step."""
        end = time.monotonic() + LOSES
        if KIND == "memory":
            while time.monotonic() < end:
                bytearray(32 << 20)
        elif KIND == "logging":
            while time.monotonic() < end:
                self.log.warning("gradient %s", [0.5] * 200)
        elif KIND == "garbage":
            gc.collect()


def main() -> None:
    """Train until the time is over."""
    unmodified = "unmodified" in sys.argv
    if not unmodified:
        import rankwatch

        rankwatch.init()
    rank = toy.start()
    began, uneven = time.time(), torch.Generator().manual_seed(rank)
    slow_from = began + BEFORE if rank == SLOW_RANK and KIND != "none" else float("inf")
    net = DistributedDataParallel(toy.model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = iter(DataLoader(Batches(slow_from if KIND == "loader" else float("inf")), batch_size=None, num_workers=1))
    fault, slow, number = Fault(), False, 0
    while True:
        with contextlib.nullcontext() if unmodified else rankwatch.step():
            x, y = next(loader)
            if not slow and time.time() >= slow_from:
                slow = True
                toy.fault()
                fault.begin()
            if slow:
                fault.step()
            time.sleep(0.02)  # a model of a useful size
            times = 1.0 + 5.0 * (slow and KIND == "compute")
            if KIND == "uneven" and time.time() - began > BEFORE:
                times = float(torch.empty(1).log_normal_(1.2, 0.7, generator=uneven))
            work(times)
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        number += 1
        if number % AGREED_EVERY == 0:
            over = torch.tensor(float(time.time() - began > LASTS))
            dist.all_reduce(over)
            if over:
                break
    for loop in fault.kept if KIND == "cpu" else ():
        loop.kill()
        loop.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
