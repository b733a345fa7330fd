"""Ranks that end in every way, each a process whose interpreter really finalises, forked with torch imported.

``python endings.py FOLDER plain|watched NAME...`` starts the named ones at once, prints ``began NAME PID`` for each,
and at its end ``ended NAME STATUS``. Each is a rank of its own, with a process group and its slots in ``FOLDER/NAME``;
``plain`` ones are without Rankwatch. ``support.forked`` would not do: its processes skip what this is about.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
import time
from pathlib import Path
from typing import Final

ENDINGS: Final = {
    "return": ("", 0),
    "return without a process group": ("dist.destroy_process_group()", 0),
    "exit 0": ("sys.exit(0)", 0),
    "exit 1": ("sys.exit(1)", 1),
    "exit 16": ("sys.exit(16)", 16),
    "exit 17": ("sys.exit(17)", 17),
    "exit with a text": ("sys.exit('not well')", 1),
    "exit in a section": ("rankwatch.section('save').__enter__(); sys.exit(17)", 17),
    "exception": ("raise ValueError('x')", 1),
    "exception, slow hook": ("sys.excepthook = lambda *_: sleep(0.5)\nraise ValueError('x')", 1),
    "exception while a thread runs": ("threading.Thread(target=sleep, args=(0.5,)).start()\nraise ValueError('x')", 1),
    "interrupt": ("raise KeyboardInterrupt", -2),
    "os._exit": ("os._exit(17)", 17),
    "os._exit at exit": ("atexit.register(os._exit, 16)\nsys.exit(3)", 16),
    "abort": ("os.abort()", -6),
    "SIGKILL": ("os.kill(os.getpid(), 9); sleep(60)", -9),
    "SIGTERM": ("os.kill(os.getpid(), 15); sleep(60)", -15),
    "SIGTERM, handled": ("signal.signal(15, lambda *_: sys.exit(16))\nos.kill(os.getpid(), 15); sleep(60)", 16),
    "thread outlives main": ("threading.Thread(target=sleep, args=(0.5,)).start()\nsys.exit(17)", 17),
    "daemon threads": (
        "[threading.Thread(target=busy, daemon=True).start() for _ in range(3)]\nsleep(0.1)\nsys.exit(17)",
        17,
    ),
    "slow at exit": ("atexit.register(sleep, 0.5)\nsys.exit(17)", 17),
    "exception at exit": ("atexit.register(lambda: 1 / 0)\nsys.exit(16)", 16),
    "exception in a thread": ("t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", 0),
    "child that exits": ("pid = os.fork()\nif not pid:\n    os._exit(0)\nos.waitpid(pid, 0); sys.exit(17)", 17),
    "shut down before": ("rankwatch.shutdown(); sleep(0.3); sys.exit(17)", 17),
}
"""What a rank does at last, and its exit code, or minus the signal that ends it: as CPython and the kernel have it."""


class SlowToFree:
    """Stands for what takes long when modules are taken apart: caches, shared memory, a big heap. No Python frame."""

    __del__ = functools.partial(time.sleep, 0.5)


def say(what: str) -> None:
    """One line for the test."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    import atexit  # noqa: F401
    import signal  # noqa: F401
    import threading  # noqa: F401
    from time import sleep
    from unittest.mock import MagicMock

    import torch
    import torch.distributed as dist

    folder, plain = Path(sys.argv[1]), sys.argv[2] == "plain"
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    children: dict[int, str] = {}
    for name in sys.argv[3:]:
        (folder / name).mkdir()
        if not (pid := os.fork()):
            break
        children[pid] = name
        say(f"began {name} {pid}")
    else:
        while children:
            pid, status = os.waitpid(-1, 0)
            say(f"ended {children.pop(pid)} {os.waitstatus_to_exitcode(status)}")
        os._exit(0)

    def busy() -> None:  # without torch, whose operations in daemon threads abort now and then as the interpreter ends
        while True:
            sum(range(1000))
            sleep(0)

    os.environ["RANKWATCH_SLOTS_DIR"] = str(folder / name)
    keep = SlowToFree()
    if plain:
        rankwatch = MagicMock()
    else:
        import rankwatch  # type: ignore[no-redef]
    dist.init_process_group("gloo", init_method=f"file://{folder / name}/store", rank=0, world_size=1)
    rankwatch.init()
    for _ in range(3):
        with rankwatch.step():
            dist.all_reduce(torch.ones(1))
            sleep(0.1)
    while not plain and not (folder / name / "0.sock").exists():
        sleep(0.01)
    exec(compile(ENDINGS[name][0], name, "exec"))
