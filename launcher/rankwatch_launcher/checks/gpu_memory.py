"""Memory of the GPUs that processes of an earlier attempt still hold: waited for, then these are named and ended.

As nvidia-resiliency-ext: 512 MiB, 50 s. Only processes of this user with this launcher's folder in their environment
are ended; another job that shares the GPU is no fault.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rankwatch.contract import env
from rankwatch.contract.node_checks import CheckName, CheckReason
from rankwatch_launcher.checks.check import Check, CheckedNode, Failed, Found, Passed, Skipped
from rankwatch_launcher.checks.gpu import Gpus, opened

TOLERATED: Final = 512 << 20
WAIT_SECONDS: Final = 50.0
POLL_SECONDS: Final = 0.5
KILL_SECONDS: Final = 8.0
"""How long the driver may take to free the memory of a process that was killed."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process of an earlier attempt, with the memory that it holds on one GPU."""

    pid: int
    gpu: int
    used: int
    command: str


def run(node: CheckedNode) -> Found:
    """Wait for the memory, then kill who holds it."""
    gpus = opened()
    if isinstance(gpus, Failed):
        return Skipped(CheckReason.NOT_READABLE, {"what": "memory of the GPUs", "error": ""})
    if isinstance(gpus, Skipped):
        return gpus
    began = time.monotonic()
    held = _held(gpus, node)
    while held and time.monotonic() - began < WAIT_SECONDS:
        time.sleep(POLL_SECONDS)
        held = _held(gpus, node)
    waited = time.monotonic() - began
    if not held:
        return Passed({"waited": f"{waited:.1f} s"} if waited >= POLL_SECONDS else {})
    named = _named(held)
    for holder in held:
        _kill(holder, node)
    until = time.monotonic() + KILL_SECONDS
    while (left := _held(gpus, node)) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    if not left:
        return Passed({"ended": named, "waited": f"{waited:.1f} s"})
    used = sum(holder.used for holder in left if holder.gpu == left[0].gpu)
    evidence = {"mib": str(used >> 20), "gpu": str(left[0].gpu), "processes": _named(left)}
    return Failed(CheckReason.MEMORY_HELD, evidence)


def _held(gpus: Gpus, node: CheckedNode) -> list[Holder]:
    """Processes of earlier attempts on GPUs of which they hold more than is tolerated."""
    found: list[Holder] = []
    for index, handle in enumerate(gpus.handles):
        try:
            running = gpus.ask(partial(gpus.nvml.nvmlDeviceGetComputeRunningProcesses, handle)) or ()
        except gpus.nvml.NVMLError:
            continue  # lost: told by the check of the GPUs
        # In some containers the driver does not tell how much a process uses.
        ours = [
            Holder(each.pid, index, TOLERATED if each.usedGpuMemory is None else each.usedGpuMemory, command)
            for each in running
            if (command := earlier(each.pid, node)) is not None
        ]
        if sum(holder.used for holder in ours) >= TOLERATED:
            found += ours
    return found


def earlier(pid: int, node: CheckedNode) -> str | None:
    """The command of a process of an earlier attempt of this launcher; None: it is not one."""
    folder = Path(node.proc, str(pid))
    try:
        if folder.stat().st_uid != os.getuid():
            return None
        variables = (folder / "environ").read_bytes().split(b"\0")
        command = (folder / "comm").read_text(errors="replace").strip()
    except OSError:
        return None
    prefix = f"{env.SLOTS_DIR}={node.slots}/".encode()
    return command if node.slots and any(each.startswith(prefix) for each in variables) else None


def _kill(holder: Holder, node: CheckedNode) -> None:
    """By a descriptor of the process, so that another one that got its number is left alone."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(holder.pid)
        try:
            if earlier(holder.pid, node) is not None:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _named(held: list[Holder]) -> str:
    return ", ".join(dict.fromkeys(_words(held)))


def _words(held: list[Holder]) -> Iterator[str]:
    for holder in held:
        yield f"{holder.command} (pid {holder.pid})"


CHECK: Final = Check(CheckName.GPU_MEMORY, run, limit=WAIT_SECONDS + KILL_SECONDS + 5.0)
