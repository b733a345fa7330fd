"""A monitor that measures how long anything holds its event loop: ``python _holds.py FILE ARGUMENTS OF THE MONITOR``.

Each callback of the loop is timed by its thread's CPU time, so that other programs on the machine do not count, and by
the clock, with the stack at one moment of the long ones. SIGUSR2 writes what was measured since the last one to FILE.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final

LONG: Final = 0.02
"""Seconds of CPU time above which a callback is kept."""
SAMPLED: Final = 0.05
"""Seconds by the clock after which the stack of a callback is kept, once."""
FRAMES: Final = 6

_holds: list[tuple[float, float, str, tuple[str, ...]]] = []
_sampled: tuple[str, ...] = ()
"""Where the loop's thread was when the callback under way had run for longer than :data:`SAMPLED`."""
_callback_began: float | None = None


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


def _write(target: Path) -> None:
    found = {
        "holds of the loop above 20 ms": len(_holds),
        "longest holds, s of CPU time, s, callback, stack": sorted(_holds, reverse=True)[:20],
    }
    target.with_suffix(".new").write_text(json.dumps(found))
    target.with_suffix(".new").rename(target)
    _holds.clear()


def main() -> None:
    """Run the monitor, measured."""
    target = Path(sys.argv[1])
    sys.argv = ["rankwatch monitor", *sys.argv[2:]]
    asyncio.Handle._run = _run_timed(asyncio.Handle._run)  # type: ignore[attr-defined]
    threading.Thread(target=_sample, args=(threading.get_ident(),), daemon=True).start()
    signal.signal(signal.SIGUSR2, lambda *_: _write(target))
    runpy.run_module("rankwatch_monitor", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
