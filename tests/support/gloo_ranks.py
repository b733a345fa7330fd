"""Real ranks over gloo that get stuck as instructed, with torch's control plane beside their slots."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.forked import ForkedPopen
from support.waiting import wait_for

ROOT = Path(__file__).parents[2]
READY_SECONDS = 60.0

PROGRAM = """
import ctypes, datetime, os, sys, threading
from pathlib import Path
import torch, torch.distributed as dist
from rankwatch.liveness import stack_dump
from rankwatch.liveness.torch_control_plane import ControlPlane
from rankwatch_launcher.stacks.capture import STACK_SIGNAL
rank, size, misses, kind, folder = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5])

def rankwatch_sleeps():
    threading.Event().wait()

def rankwatch_holds_the_gil():
    ctypes.PyDLL(None).pause()

stacks = stack_dump.write_stack_on(STACK_SIGNAL, folder / f"{rank}.stack")
failed = []
ControlPlane(folder / f"{rank}.sock", failed.append).start()
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size,
                        timeout=datetime.timedelta(seconds=300))
pair = dist.new_group([0, 1], group_desc="pair")
one = torch.ones(1)
for _ in range(3):
    dist.all_reduce(one)
if rank < 2:
    dist.broadcast(one, 0, group=pair)
if rank == 0:
    dist.send(one, 1)
if rank == 1:
    dist.recv(one, 0)
while not (folder / f"{rank}.sock").exists():
    assert not failed, failed
(folder / f"{rank}.ready").touch()
if rank == misses:
    {"sleep": rankwatch_sleeps, "gil": rankwatch_holds_the_gil}[kind]()
dist.all_reduce(one)
rankwatch_sleeps()
"""


@dataclass(frozen=True)
class GlooRanks:
    """Ranks in a folder: ``<rank>.sock`` is each one's control plane, ``pids`` their processes."""

    folder: Path
    pids: tuple[int, ...]

    def socket(self, rank: int) -> Path:
        return self.folder / f"{rank}.sock"

    def stop(self, rank: int) -> None:
        """SIGSTOP, and wait until it is stopped."""
        os.kill(self.pids[rank], signal.SIGSTOP)
        stat = Path(f"/proc/{self.pids[rank]}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the process is stopped")


@contextlib.contextmanager
def gloo_ranks(folder: Path, size: int = 2, *, misses: int = 1, kind: str = "sleep") -> Iterator[GlooRanks]:
    """``size`` ranks in the fourth all_reduce of the world, which rank ``misses`` does not enter (-1: all enter it)."""
    path = os.pathsep.join(str(ROOT / name) for name in ("telemetry", "launcher"))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RANKWATCH_", "TORCH"))}
    env |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(size):
            with (folder / f"{rank}.log").open("wb") as log:
                arguments = [str(rank), str(size), str(misses), kind, str(folder)]
                command = [sys.executable, "-c", PROGRAM, *arguments]
                processes.append(ForkedPopen(command, env=env, stdout=log, stderr=subprocess.STDOUT))

        def ready() -> bool:
            for rank, process in enumerate(processes):
                assert process.poll() is None, f"rank {rank} ended:\n{(folder / f'{rank}.log').read_text()[-4000:]}"
            return all((folder / f"{rank}.ready").exists() for rank in range(size))

        wait_for(ready, "all ranks are in place", READY_SECONDS)
        yield GlooRanks(folder, tuple(p.pid for p in processes))
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait(60)
