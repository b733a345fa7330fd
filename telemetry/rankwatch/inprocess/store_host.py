"""Holds the coordination store in a process of its own, so that the death of rank 0 does not take it away.

It is given two arguments, PORT and KEPT, and writes a line when it listens. It stays as long as rank 0, which may call
a wrapped function again however long it does other things before. When rank 0 has ended, it ends as soon as every other
rank has said goodbye or is lost, or when none has beaten for KEPT seconds.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any, Final

PREFIX: Final = "rankwatch/inprocess"
"""Before all keys; those of the n-th call of a wrapped function begin with ``PREFIX/n``."""
CURRENT: Final = "current"
"""Which call the ranks are in; of rank 0."""
BEATS: Final = "beats"
"""Counts the heartbeats of all ranks in a call."""
GOODBYES: Final = "goodbyes"
LOST: Final = "lost"
RANKS: Final = "ranks"
"""How many there are."""
LOOK_EVERY: Final = 0.2
"""Seconds between two looks whether all have said goodbye."""


def serve(port: int, kept: float) -> None:
    """Serve until it is over.

    Raises:
        RuntimeError: the port is in use.
    """
    distributed: Any = importlib.import_module("torch.distributed")
    # Of no number of workers, so that it waits for none.
    server = distributed.TCPStore("0.0.0.0", port, None, True, timeout=timedelta(seconds=30), wait_for_workers=False)
    store = distributed.PrefixStore(PREFIX, server)
    print("ready", flush=True)  # noqa: T201 - read by the rank that started this
    parent = os.getppid()
    seen, heard = (b"", -1), time.monotonic()
    while True:
        current = bytes(store.get(CURRENT)) if store.check([CURRENT]) else b""
        call = distributed.PrefixStore(current.decode() or "0", store)
        if (now := (current, int(call.add(BEATS, 0)))) != seen:
            seen, heard = now, time.monotonic()
        if os.getppid() != parent and (time.monotonic() - heard > kept or _is_over(call)):
            return
        time.sleep(LOOK_EVERY)


def _is_over(call: Any) -> bool:
    """Whether no rank asks anything more in this call."""
    if not call.check([RANKS]):
        return False
    return _ranks(call, GOODBYES) | _ranks(call, LOST) >= set(range(int(call.get(RANKS))))


def _ranks(store: Any, key: str) -> set[int]:
    lines = store.get(key).decode().splitlines() if store.check([key]) else []
    return {json.loads(line)["rank"] for line in lines}


def main() -> None:
    """What the process runs."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the ranks, which need the store to come back
    serve(int(sys.argv[1]), float(sys.argv[2]))
    os._exit(0)
