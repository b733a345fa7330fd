"""What CPU time the training thread got, and what it had to wait for: tells a slow host from slow Python.

How this works
--------------
The kernel counts for every thread the nanoseconds that it ran and the nanoseconds that it was ready to run and had no
CPU; both stand in ``/proc/self/task/<tid>/schedstat``. The file is opened once and read in place (about 2 µs), by any
thread of the process. A container whose CPU quota is used up is *throttled*; how long is counted by its control group
(``cpu.stat``), for all its threads together. The thread's waiting time contains its own part of that.

Nothing here needs rights. What cannot be read (no Linux, a sandbox without these files) is ``None``, never an error.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

_SECONDS: Final = {"throttled_usec": 1e-6, "throttled_time": 1e-9}
"""Fields of ``cpu.stat`` and their units: the first is that of control groups v2, the second of v1."""


class CpuClock:
    """CPU time of one thread, by its native id; by default of the main thread. Times are seconds since the last call.

    Meant for one reader: each of the two methods keeps what it read last.
    """

    def __init__(self, thread: int | None = None) -> None:
        native = threading.main_thread().native_id if thread is None else thread
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(f"/proc/self/task/{native}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._last = self._read()
        self._groups = {path: seconds for path in _cpu_stats() if (seconds := _throttled(path)) is not None}

    def per_step(self, steps: int) -> tuple[float, float] | None:
        """Seconds on a CPU and seconds without one although ready to run, both divided by ``steps``.

        ``None`` where the kernel does not tell, when the thread has ended, and when no step was made; in the last
        case the time counts for the next call.
        """
        now = self._read()
        if now is None or self._last is None or steps < 1:
            return None
        before, self._last = self._last, now
        return (now.used - before.used) * 1e-9 / steps, (now.waited - before.waited) * 1e-9 / steps

    def throttled(self) -> float | None:
        """Seconds for which the CPU quota of our control group, or of one around it, held threads back.

        The kernel adds up the CPUs, so it can be more than the time that passed. ``None`` where no quota is counted.
        """
        worst: float | None = None
        for path, before in self._groups.items():
            now = _throttled(path)
            if now is not None:
                worst = max(worst or 0.0, now - before)
                self._groups[path] = now
        return worst

    def close(self) -> None:
        """Give the file back; from then on nothing is told."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _read(self) -> _Counts | None:
        if self._file is None:
            return None
        try:
            fields = os.pread(self._file, 128, 0).split()
            counts = _Counts(int(fields[0]), int(fields[1]))
        except (OSError, ValueError, IndexError):  # the thread has ended, or a kernel that writes something else
            return None
        return counts if counts.used else None  # a kernel built without these counters writes zeros


class _Counts(NamedTuple):
    """Nanoseconds since the thread began."""

    used: int
    waited: int


def _throttled(path: Path) -> float | None:
    """Seconds of throttling that a ``cpu.stat`` counts, or ``None``: the top of the tree, for one, has no quota."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in _SECONDS:
                return int(value) * _SECONDS[name]
    return None


def _cpu_stats() -> list[Path]:
    """``cpu.stat`` of our control group and of all around it that can be seen; those of a pod hold the quota."""
    with contextlib.suppress(OSError, ValueError):
        ours = _our_groups(Path("/proc/self/cgroup").read_text())
        mounts = Path("/proc/self/mountinfo").read_text()
        return [stat for group in _folders(mounts, ours) for stat in (group / "cpu.stat",) if stat.is_file()]
    return []


def _our_groups(text: str) -> dict[bool, PurePosixPath]:
    """Read ``/proc/self/cgroup``: our place in the tree of v2 (``True``) and in that of v1's CPU controller."""
    places: dict[bool, PurePosixPath] = {}
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        if (number, controllers) == ("0", ""):
            places[True] = PurePosixPath(path)
        elif "cpu" in controllers.split(","):
            places[False] = PurePosixPath(path)
    return places


def _folders(mounts: str, ours: dict[bool, PurePosixPath]) -> Iterator[Path]:
    """Our control groups' folders, from the inside out, where ``/proc/self/mountinfo`` says that they are mounted."""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        unified = kind == "cgroup2"
        if not (unified or (kind == "cgroup" and "cpu" in options.split(","))) or unified not in ours:
            continue
        root, mounted = PurePosixPath(fields.split(" ")[3]), Path(fields.split(" ")[4])
        # Outside of our namespace the path leads elsewhere ("/../other"): then only the mount itself is ours to see.
        inside = ours[unified].relative_to(root) if ours[unified].is_relative_to(root) else PurePosixPath()
        inside = PurePosixPath() if ".." in inside.parts else inside
        yield from (mounted / inside, *(mounted / around for around in inside.parents))
