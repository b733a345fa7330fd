"""A monitor that measures how long anything holds its event loop: ``python _holds.py FILE ARGUMENTS OF THE MONITOR``.

Each callback of the loop is timed by its thread's CPU time, so that other programs on the machine do not count, and by
the clock; each run of the garbage collector by the clock. SIGUSR2 writes what was measured since the last one to FILE.
"""

from __future__ import annotations

import asyncio
import gc
import json
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

LONG: Final = 0.02
"""Seconds of CPU time above which a callback is kept."""

_holds: list[tuple[float, float, str]] = []
_collections: dict[int, list[float]] = {0: [], 1: [], 2: []}
_collected = [0, 0, 0]
_began = 0.0


def _run_timed(run: Any) -> Any:
    def timed(handle: asyncio.Handle) -> None:
        cpu, clock = time.thread_time(), time.perf_counter()
        try:
            run(handle)
        finally:
            took = time.thread_time() - cpu
            if took > LONG:
                _holds.append((took, time.perf_counter() - clock, repr(handle._callback)[:300]))  # type: ignore[attr-defined]

    return timed


def _on_collection(phase: str, info: dict[str, int]) -> None:
    global _began
    if phase == "start":
        _began = time.thread_time()
    else:
        _collections[info["generation"]].append(time.thread_time() - _began)
        _collected[info["generation"]] += info["collected"]


def _write(target: Path) -> None:
    longest = sorted(_holds, reverse=True)[:20]
    found = {
        "holds of the loop above 20 ms": len(_holds),
        "longest holds, s of CPU time, s, callback": longest,
        "collections": {
            str(each): {"runs": len(spent), "longest, s": max(spent, default=0.0), "in all, s": sum(spent)}
            for each, spent in _collections.items()
        },
        "objects collected": list(_collected),
    }
    target.with_suffix(".new").write_text(json.dumps(found))
    target.with_suffix(".new").rename(target)
    _holds.clear()
    for spent in _collections.values():
        spent.clear()
    _collected[:] = 0, 0, 0


def main() -> None:
    """Run the monitor, measured."""
    target = Path(sys.argv[1])
    sys.argv = ["rankwatch monitor", *sys.argv[2:]]
    asyncio.Handle._run = _run_timed(asyncio.Handle._run)  # type: ignore[attr-defined]
    gc.callbacks.append(_on_collection)
    signal.signal(signal.SIGUSR2, lambda *_: _write(target))
    runpy.run_module("rankwatch_monitor", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
