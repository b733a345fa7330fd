"""A monitor that measures how long anything holds its event loop: ``python _holds.py FILE ARGUMENTS OF THE MONITOR``.

Each callback of the loop is timed by its thread's CPU time, so that other programs on the machine do not count, and by
the clock, with the stack at one moment of the long ones; so is each turn of the loop (all callbacks between two polls
for I/O), which is what a new connection waits for several times; each run of the garbage collector by the clock, and
how long complete requests waited in line.
SIGUSR2 writes what was measured since the last one to FILE.
"""

from __future__ import annotations

import asyncio
import gc
import json
import runpy
import selectors
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, Final

import _table

from rankwatch_monitor.ingest.work_queue import Waiting, WorkQueue

LONG: Final = 0.02
"""Seconds of CPU time above which a callback is kept."""

LONG_TURN: Final = 0.1
"""Seconds by the clock above which a turn is kept."""
LONGEST_TURNS: Final = 5

SAMPLED: Final = 0.05
"""Seconds by the clock after which the stack of a callback is kept, once."""
FRAMES: Final = 6

_holds: list[tuple[float, float, str, tuple[str, ...]]] = []
_turns: list[tuple[float, float, dict[str, tuple[int, float]]]] = []
_turn: Counter[str] = Counter()
"""Callbacks of the turn under way, by kind, and the CPU time of each kind."""
_turn_cpu: Counter[str] = Counter()
_turn_began = 0.0, 0.0
_collections: dict[int, list[float]] = {0: [], 1: [], 2: []}
_collected = [0, 0, 0]
_began = 0.0
_sampled: tuple[str, ...] = ()
"""Where the loop's thread was when the callback under way had run for longer than :data:`SAMPLED`."""
_callback_began: float | None = None
_waits: list[float] = []
"""Seconds for which each complete request of a fast lane waited in line."""


def _run_timed(run: Any) -> Any:
    def timed(handle: asyncio.Handle) -> None:
        global _callback_began, _sampled
        cpu, clock = time.thread_time(), time.perf_counter()
        _callback_began, _sampled = clock, ()
        try:
            run(handle)
        finally:
            _callback_began = None
            took = time.thread_time() - cpu
            kind = _kind(handle._callback)  # type: ignore[attr-defined]
            _turn[kind] += 1
            _turn_cpu[kind] += took  # type: ignore[assignment]
            if took > LONG:
                callback = repr(handle._callback)[:120]  # type: ignore[attr-defined]
                _holds.append((took, time.perf_counter() - clock, callback, _sampled))

    return timed


def _sample(thread: int) -> None:
    """Keep the stack of each callback that runs for longer than :data:`SAMPLED`, from a thread of its own."""
    global _sampled
    while True:
        time.sleep(SAMPLED / 3)
        began = _callback_began
        if began is not None and not _sampled and time.perf_counter() - began > SAMPLED:
            stack = traceback.extract_stack(sys._current_frames()[thread])[-FRAMES:]
            _sampled = tuple(f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in stack)


def _kind(callback: Any) -> str:
    task = getattr(callback, "__self__", None)
    return str(getattr(callback if not isinstance(task, asyncio.Task) else task.get_coro(), "__qualname__", callback))


def _select_timed(select: Any) -> Any:
    def timed(selector: Any, timeout: float | None = None) -> Any:
        global _turn_began
        began, cpu = _turn_began
        if _turn and time.perf_counter() - began > LONG_TURN:
            most = [(kind, (_turn[kind], round(took, 4))) for kind, took in _turn_cpu.most_common(4)]
            _turns.append((time.perf_counter() - began, time.thread_time() - cpu, dict(most)))
        ready = select(selector, timeout)
        _turn.clear()
        _turn_cpu.clear()
        _turn_began = time.perf_counter(), time.thread_time()
        return ready

    return timed


def _waited(run: Any) -> Any:
    def timed(queue: WorkQueue, waiting: Waiting) -> None:
        _waits.append(time.monotonic() - waiting.since)
        run(queue, waiting)

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
        "longest holds, s of CPU time, s, callback, stack": longest,
        "turns of the loop above 0.1 s": len(_turns),
        "longest turns, s, s of CPU time, callbacks": sorted(_turns, key=lambda turn: turn[0], reverse=True)[
            :LONGEST_TURNS
        ],
        "collections": {
            str(each): {"runs": len(spent), "longest, s": max(spent, default=0.0), "in all, s": sum(spent)}
            for each, spent in _collections.items()
        },
        "objects collected": list(_collected),
        "requests waited in line, s": _table.spread(_waits or [0.0]),
    }
    target.with_suffix(".new").write_text(json.dumps(found))
    target.with_suffix(".new").rename(target)
    _holds.clear()
    _turns.clear()
    _waits.clear()
    for spent in _collections.values():
        spent.clear()
    _collected[:] = 0, 0, 0


def main() -> None:
    """Run the monitor, measured."""
    target = Path(sys.argv[1])
    sys.argv = ["rankwatch monitor", *sys.argv[2:]]
    asyncio.Handle._run = _run_timed(asyncio.Handle._run)  # type: ignore[attr-defined]
    selectors.EpollSelector.select = _select_timed(selectors.EpollSelector.select)  # type: ignore[method-assign]
    WorkQueue._run = _waited(WorkQueue._run)  # type: ignore[method-assign]
    gc.callbacks.append(_on_collection)
    threading.Thread(target=_sample, args=(threading.get_ident(),), daemon=True).start()
    signal.signal(signal.SIGUSR2, lambda *_: _write(target))
    runpy.run_module("rankwatch_monitor", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
