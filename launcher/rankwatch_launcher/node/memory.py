"""How much memory this node and the launcher's control group can still give, and how much a process has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

KIB: Final = 1024
GIB: Final = 1 << 30
CGROUPS: Final = Path("/sys/fs/cgroup")
UNLIMITED: Final = "max"


def available(proc: Path = Path("/proc"), cgroups: Path = CGROUPS) -> int | None:
    """Bytes that can be taken without swapping: the least of the host and of every control group around us (v2).

    None when /proc/meminfo does not say.
    """
    host = _field(proc / "meminfo", "MemAvailable")
    if host is None:
        return None
    return min([host * KIB, *_rooms(proc, cgroups)])


def resident(pid: int, proc: Path = Path("/proc")) -> int:
    """Bytes that a process has in memory, files shared with others included; 0 when it is gone."""
    return (_field(proc / str(pid) / "status", "VmRSS") or 0) * KIB


def _rooms(proc: Path, cgroups: Path) -> Iterator[int]:
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
            if limit != UNLIMITED:
                used = int((group / "memory.current").read_text())
                # The kernel gives back pages of files before it kills anybody.
                yield max(0, int(limit) - used + (_field(group / "memory.stat", "inactive_file") or 0))
        except (OSError, ValueError):
            # The root group has no such files.
            continue


def _field(path: Path, name: str) -> int | None:
    """The number behind a name in a file of ``NAME: NUMBER`` lines."""
    try:
        for line in path.read_text().splitlines():
            words = line.split()
            if words and words[0].rstrip(":") == name:
                return int(words[1])
    except (OSError, ValueError, IndexError):
        pass
    return None
