"""What every rank of the side by side runs (``recovery.py``), under whichever launcher: a toy over gloo that resumes.

It runs in environments that have no Rankwatch, so it imports nothing of it unless configured. All it reports goes into
``rank-R.jsonl`` in the shared folder, with the kernel's clock (CLOCK_BOOTTIME, in which /proc counts too).

===============  ====================================================================================================
``checkpoint``   the step to go on with; rank 0 replaces it every 5 steps
``strike-N``     written by the benchmark: fault number N and its rank; struck once, three steps after a checkpoint
``finish``       written by the benchmark: all ranks leave after the same step
===============  ====================================================================================================
"""

from __future__ import annotations

import time

SCRIPT = time.clock_gettime(time.CLOCK_BOOTTIME)

import argparse  # noqa: E402 - the line above is the moment that the script has begun to run
import contextlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
from collections.abc import Callable  # noqa: E402
from contextlib import AbstractContextManager  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

RANK = int(os.environ["RANK"])
PACE = 0.015
"""Seconds of a step that stand for reading a batch; with the rest a step takes about 20 ms."""
CHECKPOINT_EVERY, STRIKE_AFTER, WARM_STEPS = 5, 3, 20

Step = Callable[[], AbstractContextManager[object]]


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Shared:
    """The folder, as one rank uses it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def report(self, event: str, **more: object) -> None:
        line = {"event": event, "pid": os.getpid(), "restart": int(os.environ["TORCHELASTIC_RESTART_COUNT"]), **more}
        with (self.folder / f"rank-{RANK}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def save(self, step: int) -> None:
        if RANK == 0:
            unfinished = self.folder / "checkpoint.new"
            unfinished.write_text(str(step))
            unfinished.replace(self.folder / "checkpoint")
        dist.barrier()

    def load(self) -> int:
        checkpoint = self.folder / "checkpoint"
        return int(checkpoint.read_text()) if checkpoint.exists() else 0

    def strike(self, entered: float) -> None:
        """Do what the newest order asks of this rank, once."""
        for order in self.folder.glob("strike-*"):
            if order.suffix == ".new":
                continue
            rank, kind = order.read_text().split()
            struck = self.folder / f"struck-{order.name.removeprefix('strike-')}"
            if int(rank) == RANK and not struck.exists():
                unfinished = struck.with_suffix(".new")
                unfinished.write_text(str(now() if kind == "kill" else entered))
                unfinished.replace(struck)
                if kind == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                threading.Event().wait()


def instrumented(by: str) -> Step:
    """How a step is reported: as a section named ``step``, as its users do it."""
    if by == "rankwatch":
        import rankwatch

        rankwatch.init()
        return rankwatch.step
    if by == "nvrx":
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

        client = RankMonitorClient()
        client.init_workload_monitoring()

        @contextlib.contextmanager
        def step():  # type: ignore[no-untyped-def]
            client.start_section("step")
            yield
            client.end_section("step")

        return step
    return contextlib.nullcontext


def train(shared: Shared, by: str) -> None:
    step = instrumented(by)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    done = begin = shared.load()
    dist.barrier()
    end = False
    while not end:
        entered = now()
        with step():
            if done % CHECKPOINT_EVERY == STRIKE_AFTER:
                shared.strike(entered)
            time.sleep(PACE)
            model(torch.randn(8, 16)).square().mean().backward()
            end = average_gradients(model, wants_an_end=(shared.folder / "finish").exists())
        done += 1
        if done == begin + 1:
            shared.report("first", at=now(), step=done)
        if done == begin + WARM_STEPS:
            shared.report("warm", at=now(), step=done)
        if done % CHECKPOINT_EVERY == 0:
            shared.save(done)
    dist.barrier()


def average_gradients(model: nn.Module, *, wants_an_end: bool) -> bool:
    """One all-reduce, in which ranks wait for ever for a peer that is gone, as they do under NCCL."""
    flat = torch.cat([torch.tensor([float(wants_an_end)]), *(weight.grad.flatten() for weight in model.parameters())])
    try:
        dist.all_reduce(flat)
    except RuntimeError:
        while True:
            signal.pause()
    model.zero_grad()
    return bool(flat[0] > 0)


def born() -> float:
    """When this process began; the kernel counts it in hundredths of a second."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--instrument", choices=("nothing", "rankwatch", "nvrx"), default="nothing")
    options = parser.parse_args()
    known = {name: os.environ.get(name, "") for name in ("RANKWATCH_MONITOR", "RANKWATCH_JOB_ID")}
    Shared(options.folder).report("script", at=SCRIPT, born=born(), **known)
    train(Shared(options.folder), options.instrument)
    # gloo's threads may abort the interpreter's end, which no launcher is to blame for and none is measured by.
    os._exit(0)
