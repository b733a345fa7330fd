"""Tells whether a file is opened by anybody, as the kernel sees it (inotify)."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_IN_OPEN: Final = 0x20
_IN_DONT_FOLLOW: Final = 0x02000000


@contextlib.contextmanager
def never_opened(path: Path) -> Iterator[None]:
    """Context at whose end nobody has opened ``path`` since its begin; a descriptor of the place alone is no opening.

    Of a link nothing is told: what it leads to may be opened by others.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert events >= 0, os.strerror(ctypes.get_errno())
    try:
        watched = libc.inotify_add_watch(events, os.fsencode(path), _IN_OPEN | _IN_DONT_FOLLOW)
        assert watched > 0, os.strerror(ctypes.get_errno())
        yield
        with contextlib.suppress(BlockingIOError):
            assert os.read(events, 4096) == b"", f"{path} was opened"
    finally:
        os.close(events)
