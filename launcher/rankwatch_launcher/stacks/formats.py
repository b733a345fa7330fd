"""Parses the output of py-spy and faulthandler, and limits the size of a node's evidence. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from rankwatch.contract.messages import Frame, RankStack, read
from rankwatch.contract.text import decoded
from rankwatch_launcher.stacks.waits import PythonThread

MAX_FRAMES: Final = 64
"""Innermost frames kept per stack."""
MAX_TEXT: Final = 300
MAX_NAME: Final = 60
"""Characters kept of a thread's name."""
NODE_BYTES: Final = 2 * 2**20
"""Estimated JSON size of one node's evidence: half of the monitor's request limit, beyond which all is rejected."""

_MAIN: Final = re.compile(r"Main thread (0x[0-9a-fA-F]{1,16})\b")
_STACK: Final = "Stack (most recent call first):"
_FRAME: Final = re.compile(r'^ {2}File "(.*)", line (\d+|\?\?\?) in (.*)$')


def from_py_spy(text: str, pid: int) -> tuple[tuple[Frame, ...], dict[int, PythonThread]]:
    """The main thread's stack from ``py-spy dump --json``, and all threads by their id in the kernel, where known.

    Raises:
        ValueError: unexpected output.
    """
    try:
        threads = decoded(text)
        found = [_py_spy_frames(thread) for thread in threads if _is_main(thread, pid)]
        every = {
            int(thread["os_thread_id"]): PythonThread(str(thread["thread_name"])[:MAX_NAME], _py_spy_frames(thread))
            for thread in threads
            if thread.get("os_thread_id")
        }
    except (ArithmeticError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"unexpected output of py-spy: {error!r}") from None
    return _the_main(found), every


def from_faulthandler(text: str) -> tuple[Frame, ...]:
    """The main thread's stack from the last dump in a file of :func:`rankwatch.liveness.stack_dump.write_stack_on`.

    Raises:
        ValueError: there is none.
    """
    frames: list[Frame] | None = None
    for line in text.splitlines():
        if line == _STACK:
            frames = []
        elif (found := _FRAME.match(line)) and frames is not None:
            number = int(found[2]) if found[2].isdigit() else 0
            frames.append(frame(found[3], found[1], number))
    if not frames:
        raise ValueError("no stack was written")
    return tuple(frames[:MAX_FRAMES])


def main_thread(text: str, pid: int) -> int:
    """Which thread the main one is (``pthread_self``), from either text; 0: unknown.

    Raises:
        ValueError: unexpected output.
    """
    if text.startswith("["):
        try:
            return next((int(each.get("thread_id") or 0) for each in decoded(text) if _is_main(each, pid)), 0)
        except (ArithmeticError, TypeError, AttributeError) as error:
            raise ValueError(f"unexpected output of py-spy: {error!r}") from None
    found = _MAIN.match(text)
    return int(found[1], 16) if found else 0


def _the_main(found: Sequence[tuple[Frame, ...]]) -> tuple[Frame, ...]:
    if not found or not found[-1]:
        raise ValueError("the main thread's stack was not found")
    return found[-1]


def _is_main(thread: Any, pid: int) -> bool:
    native = thread.get("os_thread_id")
    return bool(native == pid if native else thread.get("thread_name") == "MainThread")


def _py_spy_frames(thread: Any) -> tuple[Frame, ...]:
    return tuple(frame(f["name"], f["filename"], int(f["line"])) for f in thread["frames"][:MAX_FRAMES])


def frame(function: str, file: str, line: int) -> Frame:
    """A frame of bounded size."""
    return read(Frame, {"function": function[:MAX_TEXT], "file": file[-MAX_TEXT:], "line": line})


# Sizes ----------------------------------------------------------------------------------------------------------------


def bounded(stacks: Sequence[RankStack], limit: int = NODE_BYTES) -> tuple[RankStack, ...]:
    """Truncate a node's stacks to ``limit`` bytes; each truncation is noted in ``error``."""
    kept, note = tuple(stacks), ""
    for description, shrink in _SHRINKING:
        if sum(map(_size, kept)) <= limit:
            break
        kept, note = tuple(map(shrink, kept)), description
    if not note:
        return kept
    return tuple(replace(s, error=f"{s.error}; {note}" if s.error else note) for s in kept)


def _innermost(frames: int) -> Callable[[RankStack], RankStack]:
    return lambda stack: replace(stack, frames=stack.frames[:frames])


_SHRINKING: Final = (
    ("truncated to the innermost 16 frames", _innermost(16)),
    ("truncated to the innermost 4 frames", _innermost(4)),
)


def _size(stack: RankStack) -> int:
    frames = sum(50 + _text_size(f.function) + _text_size(f.file) for f in stack.frames)
    positions = sum(120 + _text_size(c.group) + _text_size(c.operation) + 8 * len(c.ranks) for c in stack.collectives)
    return 200 + _text_size(stack.error) + frames + positions


def _text_size(text: str) -> int:
    return len(text) if text.isascii() else 12 * len(text)  # at worst two escapes of six characters each
