"""Reads the stacks that py-spy and faulthandler print. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from rankwatch.wire.control import Frame

MAX_FRAMES: Final = 64
"""Frames kept of one stack: the inner ones, which say what it waits for."""
MAX_THREADS: Final = 32
MAX_TEXT: Final = 300

_THREAD: Final = re.compile(r"^(Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[(.*?)\])?")
_FRAME: Final = re.compile(r'^ {2}File "(.*)", line (\d+|\?\?\?) in (.*)$')


@dataclass(frozen=True, slots=True)
class Stacks:
    """The stacks of one process: the main thread's, and the others by name."""

    main: tuple[Frame, ...]
    others: dict[str, tuple[Frame, ...]] = field(default_factory=dict)


def from_py_spy(text: str, pid: int) -> Stacks:
    """Read ``py-spy dump --json``.

    Raises:
        ValueError: it is not what py-spy prints.
    """
    try:
        threads = json.loads(text)
        read = [(_is_main(t, pid), str(t.get("thread_name") or t["thread_id"]), _py_spy_frames(t)) for t in threads]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"unexpected output of py-spy: {error!r}") from None
    return _sorted_out(read)


def from_faulthandler(text: str) -> Stacks:
    """Read the last dump in a file that ``faulthandler.register`` writes.

    faulthandler prints the newest thread first, so the main thread is the last one of a dump.

    Raises:
        ValueError: there is no stack in it.
    """
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if head := _THREAD.match(line):
            threads.append((head[3] or head[2], []))
        elif (frame := _FRAME.match(line)) and threads:
            number = int(frame[2]) if frame[2].isdigit() else 0
            threads[-1][1].append(_frame(frame[3], frame[1], number))
    if not threads:
        raise ValueError("no stack was written")
    last = len(threads) - 1
    return _sorted_out([(i == last, name, tuple(frames[:MAX_FRAMES])) for i, (name, frames) in enumerate(threads)])


def _sorted_out(threads: list[tuple[bool, str, tuple[Frame, ...]]]) -> Stacks:
    main: tuple[Frame, ...] = ()
    others: dict[str, tuple[Frame, ...]] = {}
    for is_main, name, frames in threads:
        if is_main:
            main = frames
        elif len(others) < MAX_THREADS:
            others[name if name not in others else f"{name} ({len(others) + 1})"] = frames
    if not main:
        raise ValueError("the main thread's stack was not found")
    return Stacks(main, others)


def _is_main(thread: Any, pid: int) -> bool:
    native = thread.get("os_thread_id")
    return bool(native == pid if native else thread.get("thread_name") == "MainThread")


def _py_spy_frames(thread: Any) -> tuple[Frame, ...]:
    return tuple(_frame(f["name"], f["filename"], int(f["line"])) for f in thread["frames"][:MAX_FRAMES])


def _frame(function: str, file: str, line: int) -> Frame:
    return Frame(function=function[:MAX_TEXT], file=file[-MAX_TEXT:], line=line)
