"""What the scripts of this folder share: a small model, its batches, work to do, and the line that marks a fault."""

from __future__ import annotations

import atexit
import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.utils.data import Dataset


def start() -> int:
    """Join the other ranks over gloo; return this rank."""
    # Without it torch 2.13 itself aborts one job in about twenty on a busy machine, under torchrun too: gloo's thread
    # drops the last all_reduce of DDP, for which it takes the GIL, while the interpreter is already finalising.
    atexit.register(time.sleep, 0.5)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    return dist.get_rank()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def batch(rows: int = 32) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 64), torch.randint(0, 10, (rows,))


def train_step(net: nn.Module, optimizer: torch.optim.Optimizer, rows: int = 32) -> Tensor:
    """Forward, backward and update on one batch, in 20 ms or more."""
    x, y = batch(rows)
    time.sleep(0.02)  # a model of a useful size
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def average_gradients(net: nn.Module) -> None:
    """What people write who do without DistributedDataParallel."""
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def compute(seconds: float) -> float:
    """Matrix products for so long."""
    end, total, a = time.monotonic() + seconds, 0.0, torch.randn(200, 200)
    while time.monotonic() < end:
        total += float((a @ a).mean())
    return total


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Rows of random numbers."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.randn(64), torch.tensor(index % 10)


def fault() -> None:
    """Say that the fault of this rank begins now."""
    print(f"FAULT {os.environ['RANK']} {time.time():.3f}", flush=True)


def first_attempt() -> bool:
    """Whether this job has not been restarted; what a restart mends is gone in later attempts."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


def outside(*what: object) -> str:
    """Start what is outside of the job (``outside.py``), which ends with this process; return its address, if any."""
    program = str(Path(__file__).with_name("outside.py"))
    command = [sys.executable, program, str(os.getpid()), *map(str, what)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        return starter.stdout.readline().partition(" ")[2].strip()


def wait_for_storage(path: str) -> None:
    """Wait for ``outside("storage", path, ...)`` as for a disk, in state D: what a parent does whose vforked child
    has not come to its exec; here the child first opens a pipe.
    """
    libc, actions, none = ctypes.CDLL(None), ctypes.create_string_buffer(256), ctypes.c_char_p(None)
    argv = (ctypes.c_char_p * 2)(b"true", none)
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addopen(actions, 0, path.encode(), os.O_RDONLY, 0)
    child = ctypes.c_int()
    assert libc.posix_spawn(ctypes.byref(child), b"/bin/true", actions, None, argv, ctypes.byref(argv, 8)) == 0
    os.waitpid(child.value, 0)
