"""Storage: folders of the job are written, synced, read and removed; mounts of network file systems answer."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rankwatch.contract.node_checks import CheckName, CheckReason
from rankwatch_launcher.checks.check import Check, CheckedNode, Failed, Found, Passed, Skipped

SIZE: Final = 64 * 1024
"""Bytes that are written: more than one page, less than anyone notices on thousands of nodes at once."""
LITTLE_SPACE: Final = 64 << 20
"""Bytes free below which a checkpoint will not fit."""
NETWORK_KINDS: Final = ("nfs", "nfs4", "lustre", "beegfs", "gpfs", "ceph", "cifs", "smb3", "9p", "fuse.juicefs")
STALE: Final = (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH)
MOUNT_SECONDS: Final = 3.0
"""How long a mount may take to answer statfs."""


def run(node: CheckedNode) -> Found:
    """Check the paths, then the mounts."""
    for path in node.paths:
        if (found := _written(path)) is not None:
            return found
    mounts = [*_network_mounts(node)]
    if (stale := _stale(mounts)) is not None:
        return stale
    if not node.paths and not mounts:
        return Skipped(CheckReason.NOTHING_HERE, {"what": "path to check (--check-path) and no network file system"})
    return Passed({"paths": str(len(node.paths)), "mounts": str(len(mounts))})


def _written(path: str) -> Failed | None:
    content = os.urandom(SIZE)
    file = os.path.join(path, f".rankwatch-check-{os.uname().nodename}-{os.getpid()}")
    try:
        state = os.statvfs(path)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, content)
            os.fsync(descriptor)
            if hasattr(os, "posix_fadvise"):  # so that it is read back, as far as the file system obeys
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            read = os.pread(descriptor, SIZE + 1, 0)
        finally:
            os.close(descriptor)
            os.unlink(file)
    except OSError as error:
        return Failed(CheckReason.NOT_WRITABLE, {"path": path, "error": error.strerror or str(error)})
    if read != content:
        return Failed(CheckReason.READ_BACK, {"path": path})
    free = state.f_bavail * state.f_frsize
    if state.f_blocks and free < LITTLE_SPACE:
        return Failed(CheckReason.NO_SPACE, {"path": path, "found": f"{free >> 20} MiB"})
    if state.f_files and not state.f_favail:
        return Failed(CheckReason.NO_SPACE, {"path": path, "found": "no inode"})
    return None


def _network_mounts(node: CheckedNode) -> Iterator[tuple[str, str]]:
    """Path and kind of the mounts of network file systems."""
    try:
        lines = Path(node.proc, "self/mounts").read_text().splitlines()
    except OSError:
        return
    for words in map(str.split, lines):
        if len(words) > 2 and words[2] in NETWORK_KINDS:
            yield words[1].encode().decode("unicode_escape"), words[2]  # a space is written \040


def _stale(mounts: list[tuple[str, str]]) -> Failed | None:
    """The first mount that does not answer; each is asked on a thread, since a dead server blocks for minutes."""
    errors: dict[str, str | None] = {}

    def ask(path: str) -> None:
        try:
            os.statvfs(path)
            errors[path] = None
        except OSError as error:  # a folder that may not be entered answers, too
            errors[path] = error.strerror if error.errno in STALE else None

    threads = [threading.Thread(target=ask, args=(path,), daemon=True) for path, _ in mounts]
    for thread in threads:
        thread.start()
    for (path, kind), thread in zip(mounts, threads, strict=True):
        thread.join(MOUNT_SECONDS)
        error = f"no answer within {MOUNT_SECONDS:g} s" if thread.is_alive() else errors.get(path)
        if error is not None:
            return Failed(CheckReason.MOUNT_STALE, {"path": path, "kind": kind, "error": error})
    return None


CHECK: Final = Check(CheckName.STORAGE, run, limit=20.0)
