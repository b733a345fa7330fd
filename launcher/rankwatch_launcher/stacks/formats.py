"""Reads the stacks that py-spy and faulthandler print, and keeps a node's evidence within its size. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from rankwatch.contract.messages import Frame, RankStack

MAX_FRAMES: Final = 64
"""Frames kept of one stack: the inner ones, which say what it waits for."""
MAX_TEXT: Final = 300
NODE_BYTES: Final = 2 * 2**20
"""JSON of one node's evidence, by estimate: half of what a monitor takes in one request; more is refused whole."""

_THREAD: Final = re.compile(r"^(Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[(.*?)\])?")
_FRAME: Final = re.compile(r'^ {2}File "(.*)", line (\d+|\?\?\?) in (.*)$')


def from_py_spy(text: str, pid: int) -> tuple[Frame, ...]:
    """The main thread's stack from ``py-spy dump --json``.

    Raises:
        ValueError: it is not what py-spy prints.
    """
    try:
        threads = json.loads(text)
        found = [_py_spy_frames(thread) for thread in threads if _is_main(thread, pid)]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"unexpected output of py-spy: {error!r}") from None
    return _the_main(found)


def from_faulthandler(text: str) -> tuple[Frame, ...]:
    """The main thread's stack from the last dump in a file of ``faulthandler.register``, or the control plane's answer.

    faulthandler prints the newest thread first, so the main thread is the last one of a dump.

    Raises:
        ValueError: there is no stack in it, or not the main thread's.
    """
    threads: list[list[Frame]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif (frame := _FRAME.match(line)) and threads:
            number = int(frame[2]) if frame[2].isdigit() else 0
            threads[-1].append(_frame(frame[3], frame[1], number))
        elif line == "...":
            raise ValueError("faulthandler shows 100 threads at most, and the main thread is not among them")
    if not threads:
        raise ValueError("no stack was written")
    return _the_main([tuple(threads[-1][:MAX_FRAMES])])


def _the_main(found: Sequence[tuple[Frame, ...]]) -> tuple[Frame, ...]:
    if not found or not found[-1]:
        raise ValueError("the main thread's stack was not found")
    return found[-1]


def _is_main(thread: Any, pid: int) -> bool:
    native = thread.get("os_thread_id")
    return bool(native == pid if native else thread.get("thread_name") == "MainThread")


def _py_spy_frames(thread: Any) -> tuple[Frame, ...]:
    return tuple(_frame(f["name"], f["filename"], int(f["line"])) for f in thread["frames"][:MAX_FRAMES])


def _frame(function: str, file: str, line: int) -> Frame:
    return Frame(function=function[:MAX_TEXT], file=file[-MAX_TEXT:], line=line)


# Sizes ----------------------------------------------------------------------------------------------------------------


def bounded(stacks: Sequence[RankStack], limit: int = NODE_BYTES) -> tuple[RankStack, ...]:
    """Cut a node's stacks until they fit into ``limit`` bytes; what was cut is said in each one's ``error``."""
    kept, cut = tuple(stacks), ""
    for what, shrink in _SHRINKING:
        if sum(map(_size, kept)) <= limit:
            break
        kept, cut = tuple(map(shrink, kept)), what
    if not cut:
        return kept
    return tuple(replace(s, error=f"{s.error}; {cut}" if s.error else cut) for s in kept)


def _inner(frames: int) -> Callable[[RankStack], RankStack]:
    return lambda stack: replace(stack, frames=stack.frames[:frames])


_SHRINKING: Final = (
    ("for its size cut to the inner 16 frames", _inner(16)),
    ("for its size cut to the inner 4 frames", _inner(4)),
)


def _size(stack: RankStack) -> int:
    frames = sum(50 + _text_size(f.function) + _text_size(f.file) for f in stack.frames)
    positions = sum(120 + _text_size(c.group) + _text_size(c.operation) + 8 * len(c.ranks) for c in stack.collectives)
    return 200 + _text_size(stack.error) + frames + positions


def _text_size(text: str) -> int:
    return len(text) if text.isascii() else 12 * len(text)  # JSON writes two escapes of six letters at worst
