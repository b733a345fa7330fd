"""Files and folders that other users of the machine cannot plant, redirect or read half-written."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, Final

LARGEST: Final = 1 << 20
"""Bytes of a file that is read whole."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def find_program(name: str) -> str | None:
    """The program beside this interpreter, else the one on PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def replace_file(path: Path, content: str | bytes | Iterable[str], *, sync: bool = False, mode: int = 0o666) -> None:
    """Write ``content`` to a temporary file beside ``path`` and rename it to ``path``.

    The temporary name is random and the file is created by this call, so that several processes may replace the same
    file and a link planted by another user is never followed. With ``sync`` the content is on disk before the rename.
    ``mode`` is the file's mode, less what the umask takes away.

    Raises:
        OSError: it cannot be written; ``path`` is unchanged and the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(temporary, _NEW, mode), "wb") as file:
            parts = (content,) if isinstance(content, str | bytes) else content
            file.writelines(part if isinstance(part, bytes) else part.encode() for part in parts)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def opened(path: Path, owner: int | None = None, *, follow: bool = True, pipe: bool = False) -> BinaryIO:
    """A file that another user has named or made, opened to be read: a regular one.

    What is none is not even opened: that starts a watchdog, and lets the writer of a pipe go on.

    Args:
        path: the file.
        owner: the user who named it and may be unable to read it: it is that user's, unless that is who reads it.
        follow: it may be a link.
        pipe: it may be a pipe of this user.

    Raises:
        OSError: it cannot be read, or is no such file.
    """
    place = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        about = os.fstat(place)
        if not _is_wanted(about, owner, pipe=pipe):
            raise OSError(errno.EINVAL, "it is no regular file, or another user's", str(path))
        try:
            return os.fdopen(os.open(f"/proc/self/fd/{place}", _READ), "rb")
        except FileNotFoundError:  # there is no /proc
            file = os.fdopen(os.open(path, _READ | (0 if follow else os.O_NOFOLLOW)), "rb")
            if os.path.samestat(about, os.fstat(file.fileno())):
                return file
            file.close()
            raise
    finally:
        os.close(place)


def _is_wanted(about: os.stat_result, owner: int | None, *, pipe: bool) -> bool:
    if pipe and stat.S_ISFIFO(about.st_mode):
        return about.st_uid == os.geteuid()
    return stat.S_ISREG(about.st_mode) and owner in (None, os.geteuid(), about.st_uid)


def read_file(
    path: Path, most: int = LARGEST, *, errors: str = "strict", owner: int | None = None, own: bool = False
) -> str:
    """The text of a file that another user may have made, as :func:`opened`, and no larger than ``most`` bytes.

    With ``own`` it is this user's, and no link.

    Raises:
        OSError: it cannot be read, or is no such file.
        ValueError: it is larger, or no text.
    """
    with opened(path, owner, follow=not own) as file:
        if own:
            _check_owner(path, os.fstat(file.fileno()))
        body = file.read(most + 1)
    if len(body) > most:
        raise ValueError(f"it is larger than {most} bytes")
    return body.decode(errors=errors)


def append(path: Path, text: str) -> None:
    """Append to a file of this user, made if missing, until the text is on disk; a link is not followed.

    Raises:
        OSError: it cannot be written, is no regular file, or another user's.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    with os.fdopen(descriptor, "a", encoding="utf-8") as file:
        found = os.fstat(descriptor)
        _check_owner(path, found)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        file.write(text)
        file.flush()
        os.fsync(descriptor)


def _check_owner(path: Path, found: os.stat_result, *others: int) -> None:
    if found.st_uid not in (os.geteuid(), *others):
        raise PermissionError(f"{path} belongs to another user (uid {found.st_uid})")


def tail(path: Path | str, most: int, begin: int = 0) -> str:
    """The whole lines within the last ``most`` bytes of a file, not before ``begin``; empty: it cannot be read."""
    try:
        with open(path, "rb") as file:
            start = max(begin, os.fstat(file.fileno()).st_size - most)
            file.seek(start)
            text = file.read(most).decode(errors="replace")
    except (OSError, ValueError):
        return ""
    return text.partition("\n")[2] or text if start > begin else text


def read_private(path: Path) -> bytes:
    """The content of a file that no other user can have made or read.

    Raises:
        OSError: it cannot be read, or is no such file.
    """
    with opened(path, follow=False) as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{path} is not private")
        return file.read()


def make_folders(path: Path) -> None:
    """Create ``path`` and its missing parents as mode 0700, whatever the umask.

    Raises:
        OSError: one cannot be created.
    """
    for each in (*reversed(path.parents), path):
        if not each.is_dir():
            with contextlib.suppress(FileExistsError):
                each.mkdir(mode=0o700)


def private_folder(path: Path, *, create: bool = True) -> Path:
    """Create ``path`` and its parents if missing, as mode 0700, and return it once it is private to this user.

    Raises:
        OSError: it cannot be created, or is missing and not to be created; it is a link or no folder, belongs to
            another user, or others may enter it.
    """
    if create:
        make_folders(path)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{path} is not a folder")
    _check_owner(path, found)
    if found.st_mode & 0o077:
        raise PermissionError(f"{path} is open to other users (mode {stat.S_IMODE(found.st_mode):04o}, not 0700)")
    return path


def check_own(path: Path) -> None:
    """Check that no other user can replace ``path``, which need not exist, or has planted it.

    ``sudo -E`` and ``su -p`` keep variables that name folders of another user, whose links would be followed.

    Raises:
        PermissionError: a folder or link on the way to it belongs to another user than this one and root, or everybody
            may write to it.
    """
    absolute, real = Path(os.path.abspath(path)), Path(os.path.realpath(path))
    for each in dict.fromkeys((absolute, *absolute.parents, real, *real.parents)):
        try:
            found = each.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        _check_owner(each, found, 0)
        if stat.S_ISDIR(found.st_mode) and found.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            raise PermissionError(f"{each} can be written to by all users")


def check_unshared(folder: Path) -> None:
    """Check that no other user than root can make, remove or rename files in ``folder``, or has planted it.

    A private group is no other user: it has this user's name and no other member, as in ``pam_umask`` (usergroups).

    Raises:
        OSError: it, or the link to it, belongs to another user, or others may write to it.
    """
    found = folder.stat()
    for each in (folder.lstat(), found):
        _check_owner(folder, each, 0)
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid)):
        raise PermissionError(f"{folder} can be written to by other users (chmod go-w)")


def _is_private(group: int) -> bool:
    try:
        name, about = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:  # a number without a name, as in containers
        return False
    return about.gr_name == name and {*about.gr_mem} <= {name}


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
