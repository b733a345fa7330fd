"""How people start ranks without Rankwatch: the command lines, and what they write themselves for it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from support.processes import MARK

SPAWN: Final = """
import os, runpy, sys
import torch.multiprocessing as mp
def rank(number, size, port, script, arguments):
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=port)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
if __name__ == "__main__":
    mp.spawn(rank, args=(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]), nprocs=int(sys.argv[1]))
"""
FORK: Final = """
import os, runpy, sys
import multiprocessing as mp
import torch
import torch.distributed as dist
def train(rank, world_size, port, script, arguments):
    if sys.argv[1] == "environment":
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    else:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
        dist.init_process_group = lambda *_: None
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
context, size = mp.get_context("fork"), int(sys.argv[2])
ranks = [context.Process(target=train, args=(i, size, sys.argv[3], sys.argv[4], sys.argv[5:])) for i in range(size)]
for each in reversed(ranks):
    each.start()
for each in ranks:
    each.join()
sys.exit(max(abs(each.exitcode) for each in ranks))
"""
"""Plain multiprocessing, the last rank first: the numbers are in the ranks' own environment, or in arguments alone."""
BY_MPI: Final = """
import os, runpy, sys
for name in ("RANK", "SIZE", "LOCAL_RANK"):
    os.environ[{"SIZE": "WORLD_SIZE"}.get(name, name)] = os.environ["OMPI_COMM_WORLD_" + name]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
STARTERS: Final = ("torchrun", "spawn", "fork", "arguments", "accelerate", "mpirun")


def missing(start: str) -> str:
    """What is not installed here to start ranks like this; empty: nothing."""
    if start == "mpirun":
        return "" if shutil.which("mpirun") else "mpirun"
    return "accelerate" if start == "accelerate" and importlib.util.find_spec("accelerate") is None else ""


def command(
    start: str,
    ranks: int,
    port: int,
    script: Path,
    folder: Path,
    *,
    flags: Sequence[str] = (),
    arguments: Sequence[str],
) -> list[str]:
    """How a user starts a script; ``flags`` are those of torchrun."""
    python, number, run = sys.executable, str(ranks), [str(script), *arguments]
    if start == "torchrun":
        options = ["--nproc-per-node", number, "--master-port", str(port), *flags]
        return [python, "-m", "torch.distributed.run", *options, *run]
    if start == "accelerate":
        options = ["--multi_gpu", "--num_processes", number, "--num_machines", "1", "--main_process_port", str(port)]
        options += ["--mixed_precision", "no", "--dynamo_backend", "no", "--num_cpu_threads_per_process", "1"]
        return [python, "-m", "accelerate.commands.launch", *options, *run]
    starter = folder / f"{start}.py"
    if start == "mpirun":
        options = ["--allow-run-as-root", "--oversubscribe", "-n", number, "-x", "MASTER_ADDR=127.0.0.1"]
        for name in (f"MASTER_PORT={port}", MARK, "TMPDIR", "PYTHONPATH", "OMP_NUM_THREADS"):
            options += ["-x", name]
        starter.write_text(BY_MPI)
        return ["mpirun", *options, python, str(starter), *run]
    starter.write_text(SPAWN if start == "spawn" else FORK)
    how = [] if start == "spawn" else ["environment" if start == "fork" else start]
    return [python, str(starter), *how, number, str(port), *run]


def job_name(start: str, port: int, pid: int) -> str:
    """What a diagnosis calls the job of this command."""
    return f"{os.uname().nodename} pid {pid}" if start == "arguments" else f"127.0.0.1:{port}"
