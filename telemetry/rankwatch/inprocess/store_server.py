"""The process of the coordination store, which outlives rank 0.

Arguments: PORT, IDLE_TIMEOUT and maybe the only ADDRESS to listen on. It prints "ready" once it listens, and lives at
least as long as rank 0, which may call a wrapped function again at any time. After rank 0 has exited it ends when every
other rank has deregistered or is lost, or when there was no heartbeat for IDLE_TIMEOUT seconds.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from rankwatch.contract.messages import read_text

PREFIX: Final = "rankwatch/inprocess"
"""Prefix of all keys; those of the n-th call of a wrapped function begin with ``PREFIX/n``."""
CURRENT: Final = "current"
"""Number of the call that the ranks are in; set by rank 0."""
HEARTBEATS: Final = "beats"
"""Counts the heartbeats of all ranks in a call."""
FINISHED: Final = "goodbyes"
"""Ranks that have deregistered."""
LOST: Final = "lost"
WORLD_SIZE: Final = "ranks"
CHECK_INTERVAL: Final = 0.2
"""Seconds between two checks whether the store is still needed."""
_BACKLOG: Final = 4096

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankLine:
    """One line about one rank."""

    rank: int
    why: str = ""
    """Why it is lost, or unfit to continue."""


def lines(store: Any, key: str, shape: type[T], ignored: Callable[[str], None]) -> list[T]:
    """What ranks have appended to a key. Whoever reaches the port can write there: lines that are none are left out."""
    found = []
    for line in bytes(store.get(key)).splitlines() if store.check([key]) else []:
        try:
            found.append(read_text(shape, line))
        except ValueError:
            ignored(key)
    return found


def serve(port: int, idle_timeout: float, address: str = "") -> None:
    """Serve until the store is no longer needed, on ``address`` alone if one is given.

    Raises:
        OSError: the port is in use.
        RuntimeError: the same.
    """
    distributed: Any = importlib.import_module("torch.distributed")
    listener: dict[str, int] = {}
    if address:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address, port))
            listening.listen(_BACKLOG)
            listener = {"master_listen_fd": listening.detach()}
    server = distributed.TCPStore(
        address or "0.0.0.0", port, None, True, timeout=timedelta(seconds=30), wait_for_workers=False, **listener
    )
    store = distributed.PrefixStore(PREFIX, server)
    print("ready", flush=True)  # noqa: T201 - read by the rank that started this
    parent = os.getppid()
    seen, changed_at = (b"", -1), time.monotonic()
    while True:
        current = bytes(store.get(CURRENT)) if store.check([CURRENT]) else b""
        call = distributed.PrefixStore(current.decode(errors="replace") or "0", store)
        if (latest := (current, int(call.add(HEARTBEATS, 0)))) != seen:
            seen, changed_at = latest, time.monotonic()
        if os.getppid() != parent and (time.monotonic() - changed_at > idle_timeout or _is_finished(call)):
            return
        time.sleep(CHECK_INTERVAL)


def _is_finished(call: Any) -> bool:
    """Whether every rank of this call has deregistered or is lost."""
    if not call.check([WORLD_SIZE]):
        return False
    gone = {line.rank for key in (FINISHED, LOST) for line in lines(call, key, RankLine, _nothing)}
    with contextlib.suppress(ValueError):
        return all(rank in gone for rank in range(int(call.get(WORLD_SIZE))))
    return False


def _nothing(_: str) -> None:
    """The ranks log what they ignore."""


def main() -> None:
    """Run as a process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to the whole process group; the ranks need the store to agree
    serve(int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:])
    os._exit(0)
