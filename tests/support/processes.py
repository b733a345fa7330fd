"""Finding and ending all that a test started, however deep: by a mark in the environment, which children inherit."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

MARK = "RW_TEST_MARK"
"""The variable that carries a test's mark."""

STANDBY = "RANKWATCH_STANDBY"
"""Off for all tests (``tests/conftest.py``) but those that delete it."""


def without(prefixes: tuple[str, ...]) -> dict[str, str]:
    """The environment without the variables of these names, in which what is started prewarms no workers."""
    return {name: value for name, value in os.environ.items() if name == STANDBY or not name.startswith(prefixes)}


def marked(mark: str, variable: str = MARK) -> dict[int, str]:
    """The living processes with this mark: pid and command line. Zombies have no environment, so they are left out."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                if f"{variable}={mark}\0".encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return found


def started_at(pid: int) -> int:
    """When a process was started, in clock ticks since the machine was; of two processes the older has less."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def end_marked(mark: str, variable: str = MARK) -> None:
    """SIGKILL every process with this mark, and those that they start meanwhile; stopped ones end too."""
    while left := marked(mark, variable):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
