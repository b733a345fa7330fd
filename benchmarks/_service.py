"""Real processes for the benchmarks: a monitor and a launcher, which end with the benchmark, also if that is killed."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import requests

T = TypeVar("T")

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)

TOKEN_VARIABLE, TOKEN = "RANKWATCH_MONITOR_TOKEN", "of-a-benchmark"
"""Given to ``rankwatch run``, whose own monitor then has this token."""


def wait_for(what: str, look: Callable[[], T | None], deadline: float = 60.0) -> T:
    """Look until something is there.

    Raises:
        TimeoutError: it did not come within ``deadline`` seconds.
    """
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        found = look()
        if found is not None:
            return found
        time.sleep(0.02)
    raise TimeoutError(f"waited {deadline:g} s for {what}")


def end_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, however that is; for ``preexec_fn``, with its pid."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it ended before prctl() took effect
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def process(command: Sequence[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, killed with all its children at the end. Its launcher prewarms no workers."""
    with log.open("wb") as out:
        running = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(end_with, os.getpid()),
            env={**os.environ, "RANKWATCH_STANDBY": "0", **environment},
        )
    try:
        yield running
    finally:
        for each in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, each)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(timeout=5)


@contextlib.contextmanager
def monitor(folder: Path, holds: Path | None = None) -> Iterator[str]:
    """A monitor on a free port; yields its address. ``holds``: it measures what holds its loop (``_holds.py``)."""
    ready = folder / "ready.json"
    measured = [str(Path(__file__).with_name("_holds.py")), str(holds)]
    command = [sys.executable, *(["-m", "rankwatch_monitor"] if holds is None else measured)]
    command += ["--no-token", "--port", "0", "--ready-file", str(ready)]
    command += ["--database", str(folder / "monitor.db"), "--parent-pid", str(os.getpid())]
    with process(command, folder / "monitor.log"):
        wait_for("the monitor", lambda: ready.exists() or None)
        yield json.loads(ready.read_text())["url"]


def holds(pid: int, written: Path) -> dict[str, Any]:
    """What held the loop of a measured monitor since the last call."""
    written.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    wait_for("the monitor's measures", lambda: written.exists() or None)
    found: dict[str, Any] = json.loads(written.read_text())
    return found


def get(url: str) -> Any:
    """The JSON at an address, or None while it does not answer."""
    try:
        answer = requests.get(url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=5)
    except (requests.ConnectionError, requests.Timeout):
        return None
    return answer.json() if answer.ok else None
