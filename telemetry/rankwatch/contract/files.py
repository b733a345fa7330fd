"""Writes a file in one step, so that a process that reads it finds the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path


def replace_file(path: Path, content: str | Iterable[str], *, sync: bool = False) -> None:
    """Write ``content`` to a temporary file beside ``path`` and rename it to ``path``.

    The temporary name holds host, process and thread, so that any of them may replace the same file. With ``sync`` the
    content is on disk before the rename.

    Raises:
        OSError: it cannot be written; ``path`` is unchanged and the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.{threading.get_native_id()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines((content,) if isinstance(content, str) else content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
