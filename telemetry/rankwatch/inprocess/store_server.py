"""The process of the coordination store, which outlives rank 0.

Arguments: PORT and IDLE_TIMEOUT. It prints "ready" once it listens, and lives at least as long as rank 0, which may
call a wrapped function again at any time. After rank 0 has exited it ends when every other rank has deregistered or is
lost, or when there was no heartbeat for IDLE_TIMEOUT seconds.
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


def serve(port: int, idle_timeout: float) -> None:
    """Serve until the store is no longer needed.

    Raises:
        RuntimeError: the port is in use.
    """
    distributed: Any = importlib.import_module("torch.distributed")
    server = distributed.TCPStore("0.0.0.0", port, None, True, timeout=timedelta(seconds=30), wait_for_workers=False)
    store = distributed.PrefixStore(PREFIX, server)
    print("ready", flush=True)  # noqa: T201 - read by the rank that started this
    parent = os.getppid()
    seen, changed_at = (b"", -1), time.monotonic()
    while True:
        current = bytes(store.get(CURRENT)) if store.check([CURRENT]) else b""
        call = distributed.PrefixStore(current.decode() or "0", store)
        if (latest := (current, int(call.add(HEARTBEATS, 0)))) != seen:
            seen, changed_at = latest, time.monotonic()
        if os.getppid() != parent and (time.monotonic() - changed_at > idle_timeout or _is_finished(call)):
            return
        time.sleep(CHECK_INTERVAL)


def _is_finished(call: Any) -> bool:
    """Whether every rank of this call has deregistered or is lost."""
    if not call.check([WORLD_SIZE]):
        return False
    return _ranks(call, FINISHED) | _ranks(call, LOST) >= set(range(int(call.get(WORLD_SIZE))))


def _ranks(store: Any, key: str) -> set[int]:
    lines = store.get(key).decode().splitlines() if store.check([key]) else []
    return {json.loads(line)["rank"] for line in lines}


def main() -> None:
    """Run as a process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to the whole process group; the ranks need the store to agree
    serve(int(sys.argv[1]), float(sys.argv[2]))
    os._exit(0)
