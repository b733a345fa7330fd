"""What a diagnosis costs a healthy job that it looks at: step times beside one and without, in one run.

    python benchmarks/diagnose_cost.py [--pairs 6] [--ranks 2] [--start torchrun] [--slow 0] [--json FILE]

Ranks make steps of some matrix products and an all_reduce on gloo. In turn a diagnosis runs, and for
as long none does, the order of each pair swapped. The figure is the ratio of the median step times of a pair, and of
the CPU time of the ranks for a step. In the end the job has to end with code 0. ``--slow 30``: with profiles.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import _table
from diagnose import START_SECONDS, Job

from support.starters import STARTERS
from support.waiting import wait_for

RANK = """
import os, sys, time
import torch, toy
import torch.distributed as dist
rank = toy.start()
a, value, stop = torch.randn(300, 300), torch.ones(10_000), torch.zeros(1)
steps = open(f"steps-{rank}", "w", buffering=1)
while not stop.item():
    began, cpu = time.monotonic(), time.process_time()
    for _ in range(20):
        a @ a
    dist.all_reduce(value)
    value /= dist.get_world_size()
    stop.fill_(float(rank == 0 and os.path.exists("stop")))
    dist.broadcast(stop, 0)
    print(began, time.monotonic() - began, time.process_time() - cpu, file=steps)
dist.destroy_process_group()
"""
REST = 8.0
"""Seconds without a diagnosis that a pair begins or ends with, at least."""


class Step(NamedTuple):
    """One step of one rank, in seconds."""

    began: float
    took: float
    cpu: float


def steps(folder: Path, ranks: int) -> list[Step]:
    """Those of all ranks so far."""
    lines = [line for rank in range(ranks) for line in (folder / f"steps-{rank}").read_text().splitlines()[:-1]]
    return [Step(*map(float, line.split())) for line in lines]


def medians(found: Sequence[Step], begin: float, end: float) -> tuple[float, float]:
    """Of the steps that began within this time: what they took, and their CPU time."""
    within = [each for each in found if begin <= each.began < end]
    return statistics.median(each.took for each in within), statistics.median(each.cpu for each in within)


def main() -> None:
    """Run the benchmark."""
    given = _table.arguments(
        __doc__ or "",
        pairs=(6, "pairs"),
        ranks=(2, "ranks"),
        start=("torchrun", "how they are started", {"choices": STARTERS}),
        slow=(0.0, "seconds of profiles; 0: none"),
    )
    flags = ("--slow", f"{given.slow:g}") if given.slow else ()
    folder = Path(tempfile.mkdtemp(prefix="diagnose"))
    script = folder / "train.py"
    script.write_text(RANK)
    spans, said, code = list[tuple[tuple[float, float], tuple[float, float]]](), list[str](), -1
    with contextlib.closing(Job(script, given.start, given.ranks, folder)) as job:
        last = folder / f"steps-{given.ranks - 1}"
        wait_for(lambda: last.exists() and last.read_text().count("\n") > 50, "it trains", START_SECONDS)
        for pair in range(given.pairs):
            beside, without, length = (0.0, 0.0), (0.0, 0.0), 0.0
            for diagnosing in ((True, False), (False, True))[pair % 2]:
                began = time.monotonic()
                if diagnosing:
                    verdict, _, _ = job.diagnosed(*flags)
                    said.append(verdict.get("verdict", "no job"))
                    beside = (began, time.monotonic())
                    length = beside[1] - beside[0]
                else:
                    time.sleep(max(REST, length))
                    without = (began, time.monotonic())
            spans.append((beside, without))
        found = steps(folder, given.ranks)
        (folder / "stop").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = job.process.wait(60)
    shutil.rmtree(folder, ignore_errors=True)
    pairs = [(medians(found, *beside), medians(found, *without)) for beside, without in spans]
    ratios = {
        "step time": _table.spread([beside[0] / without[0] for beside, without in pairs]),
        "CPU time": _table.spread([beside[1] / without[1] for beside, without in pairs]),
    }
    _table.report(ratios, "beside / without", given.json, exit_code=code, said=said)
    step = 1e3 * statistics.median(without[0] for _, without in pairs)
    print(f"{len(found)} steps of {step:.1f} ms; the job ended with code {code}; said: {', '.join(said)}")
    sys.exit(0 if code == 0 else 1)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
