"""A process beside a rank that ends it when its time is over, whatever the rank's interpreter does meanwhile.

How this works
--------------
It is a script of its own: the standard library only, no import of this package, a few megabytes. The rank hands it a
page of shared memory and moves a deadline forward in it; a rank that hangs with the GIL held, or is stopped, cannot
move it any more. When the deadline has passed: SIGTERM, the grace time, SIGKILL. Being late itself is forgiven once:
whoever stopped both of them, or the whole machine, shall not find the rank dead.

    python -I -S watchdog.py FD PID INTERVAL GRACE

Words of the page, 64 bits each: 0 the deadline (``time.monotonic_ns()``; 0: none), 1 set to 1 when it begins to kill.
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
    """Look until the parent has gone; end it when its deadline has passed. Standard input ends with the parent."""
    looked, overslept = time.monotonic_ns(), False
    late = int((3 * interval + 1) * 1e9)
    while os.getppid() == parent:
        if _gone(interval):
            return
        now = time.monotonic_ns()
        overslept, looked = now - looked > late, now
        deadline = words[DEADLINE]
        if deadline and now > deadline and not overslept:
            _end(words, parent, grace)
            return


def _end(words: memoryview[int], parent: int, grace: float) -> None:
    words[KILLING] = 1
    text = f"rankwatch: process {parent} made no progress until its hard timeout: SIGTERM, and SIGKILL in {grace:g} s\n"
    os.write(2, text.encode())
    try:
        os.kill(parent, signal.SIGTERM)
        until = time.monotonic() + grace
        while os.getppid() == parent and (left := until - time.monotonic()) > 0:
            if _gone(min(left, 0.2)):
                return
        if os.getppid() == parent:
            os.kill(parent, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _gone(seconds: float) -> bool:
    """Wait so long for the parent's end of the pipe to close."""
    readable, _, _ = select.select([0], [], [], seconds)
    return bool(readable) and os.read(0, 1) == b""


def main() -> None:
    """Run as a script."""
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the rank, which may want to save first
    with mmap.mmap(fd, SIZE) as page, memoryview(page) as view, view.cast("q") as words:
        watch(words, parent, float(sys.argv[3]), float(sys.argv[4]))


if __name__ == "__main__":
    main()
