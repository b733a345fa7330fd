"""Reads the stacks that py-spy and faulthandler print, and keeps a node's evidence within its size. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rankwatch.wire.control import Frame, RankStack

MAX_FRAMES: Final = 64
"""Frames kept of one stack: the inner ones, which say what it waits for."""
MAX_THREADS: Final = 32
MAX_TEXT: Final = 300
NODE_BYTES: Final = 2 * 2**20
"""JSON of one node's evidence, by estimate: half of what a monitor takes in one request; more is refused whole."""

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
    """Read the last dump in a file that ``faulthandler.register`` writes, or what the control plane answers.

    faulthandler prints the newest thread first, so the main thread is the last one of a dump.

    Raises:
        ValueError: there is no stack in it, or not the main thread's.
    """
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if head := _THREAD.match(line):
            threads.append((head[3] or head[2], []))
        elif (frame := _FRAME.match(line)) and threads:
            number = int(frame[2]) if frame[2].isdigit() else 0
            threads[-1][1].append(_frame(frame[3], frame[1], number))
        elif line == "...":
            raise ValueError("faulthandler shows 100 threads at most, and the main thread is not among them")
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


def _inner(frames: int, others: int | None) -> Callable[[RankStack], RankStack]:
    def shrink(stack: RankStack) -> RankStack:
        threads = {} if others is None else {name: of[:others] for name, of in stack.other_threads.items()}
        return replace(stack, frames=stack.frames[:frames], other_threads=threads)

    return shrink


_SHRINKING: Final = (
    ("for its size cut to the inner 8 frames of other threads", _inner(MAX_FRAMES, 8)),
    ("for its size cut to the main thread", _inner(MAX_FRAMES, None)),
    ("for its size cut to the inner 16 frames of the main thread", _inner(16, None)),
    ("for its size cut to the inner 4 frames of the main thread", _inner(4, None)),
)
"""What is given up, the least needed first."""


def _size(stack: RankStack) -> int:
    threads: Iterable[tuple[str, tuple[Frame, ...]]] = [("", stack.frames), *stack.other_threads.items()]
    frames = sum(
        _text_size(name) + sum(50 + _text_size(f.function) + _text_size(f.file) for f in of) for name, of in threads
    )
    positions = sum(120 + _text_size(c.group) + _text_size(c.operation) + 8 * len(c.ranks) for c in stack.collectives)
    return 200 + _text_size(stack.error) + frames + positions


def _text_size(text: str) -> int:
    return len(text) if text.isascii() else 12 * len(text)  # JSON writes two escapes of six letters at worst
