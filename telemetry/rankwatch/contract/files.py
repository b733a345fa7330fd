"""Files and folders that other users of the machine cannot plant, redirect or read half-written."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def find_program(name: str) -> str | None:
    """The program beside this interpreter, else the one on PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def replace_file(path: Path, content: str | Iterable[str], *, sync: bool = False, mode: int = 0o666) -> None:
    """Write ``content`` to a temporary file beside ``path`` and rename it to ``path``.

    The temporary name is random and the file is created by this call, so that several processes may replace the same
    file and a link planted by another user is never followed. With ``sync`` the content is on disk before the rename.
    ``mode`` is the file's mode, less what the umask takes away.

    Raises:
        OSError: it cannot be written; ``path`` is unchanged and the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(temporary, _NEW, mode), "w", encoding="utf-8") as file:
            file.writelines((content,) if isinstance(content, str) else content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def private_folder(path: Path, *, create: bool = True) -> Path:
    """Create ``path`` and its parents if missing, as mode 0700, and return it once it is private to this user.

    Raises:
        OSError: it cannot be created, or is missing and not to be created; it is a link or no folder, belongs to
            another user, or others may enter it.
    """
    if create:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{path} is not a folder")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user (uid {found.st_uid})")
    if found.st_mode & 0o077:
        raise PermissionError(f"{path} is open to other users (mode {stat.S_IMODE(found.st_mode):04o}, not 0700)")
    return path


def state_folder(env: Mapping[str, str]) -> Path:
    """The user's folder for state that outlives processes, as the XDG Base Directory Specification has it."""
    return Path(env.get("XDG_STATE_HOME") or "~/.local/state").expanduser()


def temporary_folder(name: str, *, create: bool = True) -> Path:
    """Return the private folder ``name`` of this user below the folder for temporary files, created if missing.

    Raises:
        OSError: it cannot be created, or another user has taken its place.
    """
    # Not "rankwatch-": that prefix marks the folders of running launchers.
    own = private_folder(Path(tempfile.gettempdir()) / f"rankwatch.{os.geteuid()}", create=create)
    return private_folder(own / name, create=create)
