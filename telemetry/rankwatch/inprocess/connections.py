"""Cuts the connections that a job's communication has opened, so that whoever waits on one of them gets an error.

No call of torch ends a collective of gloo that waits: ``abort``, ``shutdown`` and ``destroy_process_group`` return
and leave it waiting (torch 2.13). What ends it is that its connection breaks, so this breaks it, at this end; the
error comes at both ends. The same ends a wait on a ``TCPStore``, in ``init_process_group`` for example.

Cut is every TCP connection that this process has opened since a given moment and that belongs to no socket object of
Python: those of wandb, of an object store's client or of our own exporter are spared, those of gloo, NCCL and the
store are C++'s.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket


def open_now() -> frozenset[str]:
    """The sockets that this process has open, each by the name that the kernel gives it for life."""
    return frozenset(_sockets().values())


def cut_since(before: frozenset[str]) -> int:
    """Cut the TCP connections that were opened since, those of Python's own sockets excepted; return how many."""
    new = {fd: name for fd, name in _sockets().items() if name not in before}
    if not new:
        return 0
    spared = _of_python()
    return sum(_cut(fd, name) for fd, name in new.items() if fd not in spared)


def _sockets() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[int(name)] = target
    return found


def _of_python() -> set[int]:
    found = set()
    for thing in gc.get_objects():
        # By its type: some objects of torch answer isinstance() with a warning.
        if issubclass(type(thing), socket.socket):
            with contextlib.suppress(OSError):
                found.add(thing.fileno())
    return found


def _cut(fd: int, name: str) -> bool:
    try:
        number = os.dup(fd)
    except OSError:  # closed meanwhile
        return False
    if os.readlink(f"/proc/self/fd/{number}") != name:  # and its number given to something else
        os.close(number)
        return False
    with socket.socket(fileno=number) as copy:
        internet = copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
        # A listener that is shut down would end the thread of gloo that accepts on it, and the process with it.
        if not internet or copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        try:
            copy.shutdown(socket.SHUT_RDWR)
        except OSError:  # not connected
            return False
        return True
