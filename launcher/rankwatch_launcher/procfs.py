"""What ``/proc`` and the control groups report: states, start times and signal handlers of processes, free memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rankwatch.contract.enums import ProcessState

KIB: Final = 1024
GIB: Final = 1 << 30
PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")

_UNLIMITED: Final = "max"
_STATES: Final = {
    "T": ProcessState.STOPPED,
    "t": ProcessState.STOPPED,
    "D": ProcessState.UNINTERRUPTIBLE,
    "Z": ProcessState.EXITED,
    "X": ProcessState.EXITED,
}


# Processes ------------------------------------------------------------------------------------------------------------


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when a process exits; None before Linux 5.3, or when no more can be opened."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def process_state(pid: int) -> ProcessState:
    """The state of a process; ``EXITED`` when it does not exist, ``UNKNOWN`` when /proc cannot be read."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except FileNotFoundError:
        return ProcessState.EXITED if (PROC / "self").exists() else ProcessState.UNKNOWN
    except OSError:
        return ProcessState.UNKNOWN
    return state_of(stat)


def state_of(stat: str) -> ProcessState:
    """The state in the text of ``/proc/PID/stat``."""
    fields = stat_fields(stat)
    return _STATES.get(fields[0], ProcessState.ALIVE) if fields else ProcessState.UNKNOWN


def stat_fields(stat: str) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the state on; the command before it may itself hold parentheses."""
    return stat.rpartition(")")[2].split()


def catches(pid: int, signal_number: int) -> bool:
    """Whether the process has a handler for a signal (``SigCgt``)."""
    try:
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        return False
    return caught_in(status, signal_number)


def caught_in(status: str, signal_number: int) -> bool:
    """Whether the text of ``/proc/PID/status`` shows the signal as caught."""
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal_number - 1) & 1)
    return False


# Memory ---------------------------------------------------------------------------------------------------------------


def available_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Bytes available without swapping: the minimum over the host and every enclosing control group (v2).

    None when ``/proc/meminfo`` does not report it.
    """
    host = _field(proc / "meminfo", "MemAvailable")
    if host is None:
        return None
    return min([host * KIB, *_available_in_cgroups(proc, cgroups)])


def resident_memory(pid: int, proc: Path = PROC) -> int:
    """Resident set size of a process in bytes, shared file pages included; 0 when the process does not exist."""
    return (_field(proc / str(pid) / "status", "VmRSS") or 0) * KIB


def _available_in_cgroups(proc: Path, cgroups: Path) -> Iterator[int]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    if path is None:
        return
    folder = cgroups / path.strip("/")
    for group in (folder, *folder.parents):
        if cgroups not in (group, *group.parents):
            break
        try:
            limit = (group / "memory.max").read_text().strip()
            if limit != _UNLIMITED:
                used = int((group / "memory.current").read_text())
                # Inactive page cache is reclaimed before the OOM killer runs.
                yield max(0, int(limit) - used + (_field(group / "memory.stat", "inactive_file") or 0))
        except (OSError, ValueError):
            # The root group has no such files.
            continue


def _field(path: Path, name: str) -> int | None:
    """The value of a field in a file of ``NAME: NUMBER`` lines."""
    try:
        for line in path.read_text().splitlines():
            words = line.split()
            if words and words[0].rstrip(":") == name:
                return int(words[1])
    except (OSError, ValueError, IndexError):
        pass
    return None
