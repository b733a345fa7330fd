"""Folders that belong to one process, and are removed by a later one where it was killed.

A lock tells them from those of live processes, also across containers that share a file system.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def locked(folder: Path) -> int:
    """A descriptor that locks a folder; -1: another has it locked, or its file system has no locks."""
    descriptor = -1
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor >= 0:
            os.close(descriptor)
        return -1
    return descriptor


def remove_leftovers(parent: Path, pattern: str, holds: Callable[[str], bool]) -> None:
    """Remove this user's folders of processes that were killed, of which all entries have a name that fits."""
    for folder in parent.glob(pattern):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            names = [each.name for each in folder.iterdir()]
            # The folder of a process that is starting is empty until it holds the lock.
            if not names or not all(map(holds, names)):
                continue
            if (lock := locked(folder)) >= 0:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
