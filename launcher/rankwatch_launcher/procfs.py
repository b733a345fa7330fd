"""What ``/proc`` and the control groups report: states, start times and signal handlers of processes, free memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankwatch.contract.enums import ProcessState

KIB: Final = 1024
GIB: Final = 1 << 30
PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")
TICK: Final = float(os.sysconf("SC_CLK_TCK"))
"""Ticks a second: the kernel counts CPU time and starts in them."""

_MAX_FILES: Final = 16_384
_V1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_STATES: Final = {
    "T": ProcessState.STOPPED,  # and not "t", in which a debugger holds it
    "D": ProcessState.UNINTERRUPTIBLE,
    "Z": ProcessState.EXITED,
    "X": ProcessState.EXITED,
}


# Processes ------------------------------------------------------------------------------------------------------------


def text(path: Path, longest: int = -1) -> str:
    """What a file of ``/proc`` holds, at most so many characters; empty: it is gone, or may not be read."""
    try:
        with path.open(errors="replace") as file:
            return file.read(longest)
    except OSError:
        return ""


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


def ticks(fields: list[str], user: int = 11) -> int:
    """CPU time in the fields of ``stat``, with that in the kernel; ``user``: where it is. 0: the process is gone."""
    return int(fields[user]) + int(fields[user + 1]) if fields else 0


def tasks(pid: int, proc: Path = PROC) -> list[Path]:
    """The folders of a process's threads; none when it has ended, also between two reads."""
    folder = proc / str(pid) / "task"
    try:
        return [folder / name for name in os.listdir(folder)]
    except OSError:
        return []


def open_files(pid: int | str, proc: Path = PROC) -> list[str]:
    """What the descriptors of a process lead to, of thousands the first; empty: it is gone, or may not be read."""
    folder, found = proc / str(pid) / "fd", list[str]()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder)[:_MAX_FILES]:
            with contextlib.suppress(OSError):  # closed meanwhile
                found.append(os.readlink(folder / name))
    return found


def sockets(pid: int | str = "self", proc: Path = PROC) -> set[int]:
    """Inodes of the sockets of a process; of this one."""
    return {int(target[8:-1]) for target in open_files(pid, proc) if target.startswith("socket:[")}


def catches(pid: int, signal_number: int) -> bool:
    """Whether the process has a handler for a signal (``SigCgt``)."""
    return caught_in(text(PROC / str(pid) / "status"), signal_number)


def caught_in(status: str, signal_number: int) -> bool:
    """Whether the text of ``/proc/PID/status`` shows the signal as caught."""
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal_number - 1) & 1)
    return False


# Memory ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of memory of a host or of a control group."""

    available: int
    """Without swapping; page cache that can be reclaimed counts as available."""
    total: int


def memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> Memory | None:
    """Memory of the host, or of the enclosing control group (v1 or v2) of which least is available.

    None when ``/proc/meminfo`` does not report it.
    """
    available, total = field(proc / "meminfo", "MemAvailable"), field(proc / "meminfo", "MemTotal")
    if available is None or total is None:
        return None
    host = Memory(available * KIB, total * KIB)
    groups = [group for group in _cgroups(proc, cgroups) if group.total < host.total]
    return min([host, *groups], key=lambda each: each.available)


def throttled(pid: int, proc: Path = PROC, cgroups: Path = CGROUPS) -> float | None:
    """Seconds for which CPU quotas have stopped the control groups around a process (v2); None: none has a quota."""
    found = []
    try:
        path = (proc / str(pid) / "cgroup").read_text().rpartition("0::")[2].strip()
    except OSError:
        return None
    folder = cgroups / path.strip("/")
    for group in (folder, *folder.parents):
        if cgroups not in (group, *group.parents):
            break
        if (spent := field(group / "cpu.stat", "throttled_usec")) is not None:
            found.append(spent / 1e6)
    return max(found, default=None)


def resident_memory(pid: int, proc: Path = PROC) -> int:
    """Resident set size of a process in bytes, shared file pages included; 0 when the process does not exist."""
    return (field(proc / str(pid) / "status", "VmRSS") or 0) * KIB


def maps_library(pid: int, name: str, proc: Path = PROC) -> bool:
    """Whether a process has mapped a file whose name begins like this; False when /proc cannot be read."""
    return bool(maps_libraries(pid, (name,), proc))


def maps_libraries(pid: int, names: Collection[str], proc: Path = PROC) -> set[str]:
    """Which of these the names of files begin with that a process has mapped; empty when /proc cannot be read."""
    found = set[str]()
    try:
        with (proc / str(pid) / "maps").open() as maps:
            for line in maps:
                file = line.rpartition("/")[2]
                found.update(name for name in names if file.startswith(name))
                if len(found) == len(names):
                    break
    except OSError:
        return set()
    return found


def _cgroups(proc: Path, cgroups: Path) -> Iterator[Memory]:
    """Every enclosing control group with a limit. Within a container, its own group is often mounted as the root."""
    for line in text(proc / "self" / "cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root, limit, used, cache = cgroups, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, limit, used, cache = cgroups / "memory", *_V1
        else:
            continue
        folder = root / path.strip("/")
        for group in (folder, *folder.parents):
            if root not in (group, *group.parents):
                break
            with contextlib.suppress(OSError, ValueError):  # the root group of v2 has no such files; "max": no limit
                total = int((group / limit).read_text())
                # Inactive page cache is reclaimed before the OOM killer runs.
                free = total - int((group / used).read_text()) + (field(group / "memory.stat", cache) or 0)
                yield Memory(max(0, free), total)


def field(path: Path, name: str) -> int | None:
    """The value of a field in a file of ``NAME: NUMBER`` lines."""
    with contextlib.suppress(ValueError, IndexError):
        for line in text(path).splitlines():
            words = line.split()
            if words and words[0].rstrip(":") == name:
                return int(words[1])
    return None
