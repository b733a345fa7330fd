"""Whether ranks that show no progress in slots work: by the CPU time of their processes.

Those that wait for a peer behind a cut link sleep, with gloo; with NCCL they spin, and its own watchdog ends the wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from rankwatch_launcher import procfs

WORK: Final = 0.1
"""Share of one CPU from which a process works: exporters, loggers and progress bars take less."""
LOOK_SECONDS: Final = 1.0


class CpuWork:
    """Counts the looks at which one of the processes had worked since the look before. For any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, proc: Path = procfs.PROC) -> None:
        self._clock, self._proc = clock, proc
        self._lock = threading.Lock()
        self._used: dict[int, float] = {}
        self._looked_at = clock()
        self._count = 0

    def count(self, pids: Iterable[int]) -> int:
        """The number of such looks so far; this is one, unless the last was a moment ago."""
        with self._lock:
            passed = self._clock() - self._looked_at
            if passed >= LOOK_SECONDS:
                used = {pid: self._seconds(pid) for pid in pids}
                worked = any(now - self._used[pid] >= WORK * passed for pid, now in used.items() if pid in self._used)
                self._count, self._used, self._looked_at = self._count + worked, used, self._looked_at + passed
            return self._count

    def _seconds(self, pid: int) -> float:
        return procfs.ticks(procfs.stat_fields(procfs.text(self._proc / str(pid) / "stat"))) / procfs.TICK
