"""The watchdog process: kills a rank whose deadline has passed, whatever the rank's interpreter is doing.

A script that imports the standard library only, to stay within a few megabytes. It shares a page of memory with the
rank, which moves a deadline forward in it; a rank that hangs with the GIL held, or is stopped, no longer does. After
the deadline it sends SIGTERM, waits for the grace time, and sends SIGKILL. A deadline that has passed while the
watchdog itself was not scheduled is ignored once, so that suspending both processes or the machine does not kill the
rank.

    python -I -S watchdog.py FD PID INTERVAL GRACE

Words of the page, 64 bits each: 0 the deadline (``time.monotonic_ns()``; 0: none), 1 set to 1 before SIGTERM.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import sys
import time

DEADLINE = 0
KILLING = 1
SIZE = 4096


def watch(words: memoryview[int], parent: int, interval: float, grace: float) -> None:
    """Check until the parent has exited; kill it when its deadline has passed. Standard input ends with the parent."""
    checked_at, overslept = time.monotonic_ns(), False
    late = int((3 * interval + 1) * 1e9)
    while os.getppid() == parent:
        if _parent_exited(interval):
            return
        now = time.monotonic_ns()
        overslept, checked_at = now - checked_at > late, now
        deadline = words[DEADLINE]
        if deadline and now > deadline and not overslept:
            _kill(words, parent, grace)
            return


def _kill(words: memoryview[int], parent: int, grace: float) -> None:
    words[KILLING] = 1
    text = f"rankwatch: process {parent} made no progress until its hard timeout: SIGTERM, and SIGKILL in {grace:g} s\n"
    os.write(2, text.encode())
    try:
        os.kill(parent, signal.SIGTERM)
        until = time.monotonic() + grace
        while os.getppid() == parent and (left := until - time.monotonic()) > 0:
            if _parent_exited(min(left, 0.2)):
                return
        if os.getppid() == parent:
            os.kill(parent, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _parent_exited(seconds: float) -> bool:
    """Wait up to ``seconds`` for the parent's end of the pipe to close."""
    readable, _, _ = select.select([0], [], [], seconds)
    return bool(readable) and os.read(0, 1) == b""


def main() -> None:
    """Run as a script."""
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to the whole process group; the rank may save a checkpoint first
    with mmap.mmap(fd, SIZE) as page, memoryview(page) as view, view.cast("q") as words:
        watch(words, parent, float(sys.argv[3]), float(sys.argv[4]))


if __name__ == "__main__":
    main()
