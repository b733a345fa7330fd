"""Native frames of ranks, where a user asks for them: a rank is stopped for as long as they are read.

py-spy traces the process for that. If one is killed since it took too long, the kernel lets the process go on; only
stops that were under way at that moment would remain, and are taken back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Final

from rankwatch.contract.enums import ProcessState
from rankwatch.contract.messages import Frame
from rankwatch_launcher import procfs
from rankwatch_launcher.stacks import formats
from rankwatch_launcher.stacks.capture import run_py_spy

SECONDS: Final = 10.0
"""For all ranks of a node, and at most that a rank is stopped: a second on an idle machine, for the symbols of its
libraries.
"""
MEMORY: Final = 1 << 30
"""Bytes that one py-spy may allocate: it keeps these symbols."""


def of_rank(tool: str, pid: int, until: float) -> tuple[Frame, ...]:
    """The main thread's frames, Python's and native ones; empty: it does not run, or they cannot be read in time."""
    if procfs.process_state(pid) is not ProcessState.ALIVE:
        return ()
    try:
        text = run_py_spy(tool, pid, max(0.1, until - time.monotonic()), "--native", memory=MEMORY)
        return formats.from_py_spy(text, pid)[0]
    except (OSError, ValueError):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)  # discards what stops it or is about to; a process that runs ignores it
        return ()
