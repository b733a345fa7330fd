"""Shuts down the TCP connections of collectives, so that threads waiting on them get an error.

No call of torch ends a pending gloo collective: ``abort``, ``shutdown`` and ``destroy_process_group`` return and leave
it waiting (torch 2.13). Shutting down its connection raises an error at both ends. The same ends a wait on a
``TCPStore``, in ``init_process_group`` for example.

This applies to TCP connections opened since a given moment that belong to no Python socket object: the connections of
gloo, NCCL and the store are opened in C++; those of wandb, object stores and the exporter are Python's and are kept.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket


def open_sockets() -> frozenset[str]:
    """Return the open sockets of this process, by their inode names, which the kernel does not reuse while open."""
    return frozenset(_sockets().values())


def shutdown_since(before: frozenset[str]) -> int:
    """Shut down the non-Python TCP connections that are not in ``before``; return how many."""
    new = {fd: name for fd, name in _sockets().items() if name not in before}
    if not new:
        return 0
    python_fds = _python_sockets()
    return sum(_shutdown(fd, name) for fd, name in new.items() if fd not in python_fds)


def _sockets() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[int(name)] = target
    return found


def _python_sockets() -> set[int]:
    found = set()
    for item in gc.get_objects():
        # Not isinstance(): some objects of torch emit a warning for it.
        if issubclass(type(item), socket.socket):
            with contextlib.suppress(OSError):
                found.add(item.fileno())
    return found


def _shutdown(fd: int, name: str) -> bool:
    try:
        number = os.dup(fd)
    except OSError:  # closed meanwhile
        return False
    if os.readlink(f"/proc/self/fd/{number}") != name:  # and its descriptor reused
        os.close(number)
        return False
    with socket.socket(fileno=number) as copy:
        internet = copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
        # Shutting down a listener ends the gloo thread that accepts on it, and the process with it.
        if not internet or copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        try:
            copy.shutdown(socket.SHUT_RDWR)
        except OSError:  # not connected
            return False
        return True
