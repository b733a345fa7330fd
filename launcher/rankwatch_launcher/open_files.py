"""The limit of open files: raised in a launcher that hosts a store, given back to what the launcher starts."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

from rankwatch_launcher.log import logger

_OTHER_FILES: Final = 256
"""Open files of a launcher besides the connections of a store that it hosts."""
_inherited: Final = resource.getrlimit(resource.RLIMIT_NOFILE)
"""Soft and hard limit that this process was started with."""


def allow_connections(count: int) -> None:
    """Raise this process's soft limit of open files as far as a store with so many connections needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        logger.warning(
            "the limit of open files is %d (ulimit -Hn): a store here may have %d connections and refuses the rest",
            hard,
            count,
        )


def restore_limit(pid: int) -> None:
    """Give a process that was just started the limit that this one was started with.

    It is not lowered here before the start: a store's thread could then accept no connection.
    """
    if resource.getrlimit(resource.RLIMIT_NOFILE) != _inherited:
        with contextlib.suppress(OSError):  # it has ended
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _inherited)
