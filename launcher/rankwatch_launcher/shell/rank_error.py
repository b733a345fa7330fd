"""Reads the exception that ended a rank, from the error file that the rank wrote.

The file is torch's: written by ``@record`` in the script, else by :mod:`rankwatch.liveness.uncaught`. Where neither
could (an interpreter with ``-I``, a ``sys.exit(1)`` after a logged traceback), the end of the rank's standard error is
read, if torch redirects it into a file (``--redirects``, ``--tee``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from rankwatch.contract.files import tail
from rankwatch.contract.messages import Frame
from rankwatch.contract.text import decoded
from rankwatch_launcher.core.exits import MAX_TEXT, RankError

MAX_FILE: Final = 1 << 20
MAX_TAIL: Final = 64 << 10
MAX_AFTER: Final = 20
"""Lines of a log after its last traceback; with more, the process went on after it."""
MAX_FRAMES: Final = 64
HEADER: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'^\s*File "(.*)", line (\d+)(?:, in (.*))?$')
_EXCEPTION: Final = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$")
_PREFIX: Final = re.compile(r"^\[rank\d+\]: ")
"""torch begins the lines of a traceback with it, once the process group is initialised."""


def read_error(error_file: str, stderr: str = "") -> RankError | None:
    """The exception in a rank's error file, else at the end of its standard error; None: there is none.

    Args:
        error_file: path of torch's error file; empty: unknown.
        stderr: path of the file that the rank's standard error goes to; empty: it goes to no file.
    """
    return _from_error_file(error_file) or (error_of(tail(stderr, MAX_TAIL)) if stderr else None)


def _from_error_file(path: str) -> RankError | None:
    try:
        with open(path, "rb") as file:
            body: Any = decoded(file.read(MAX_FILE))
        message = body["message"]
        if isinstance(message, str):
            return RankError(message, recorded=True) if message.strip() else None
        extra, more = message.get("extraInfo") or {}, message.get("rankwatch") or {}
        text = str(extra.get("py_callstack", ""))
        at = float(more.get("at") or extra.get("timestamp") or 0.0)
        return RankError(str(message["message"]), frames_of(text), at, more.get("passing") is True, not more)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError):
        return None  # not written, or by a rank that died meanwhile


def error_of(text: str) -> RankError | None:
    """The last traceback in a text; None: there is none."""
    lines = [_PREFIX.sub("", line) for line in text.splitlines()]
    begins = [number for number, line in enumerate(lines) if line.rstrip() == HEADER]
    if not begins:
        return None
    for number in range(begins[-1] + 1, len(lines)):
        line = lines[number]
        if line and not line[0].isspace():
            if len(lines) - number > MAX_AFTER or not _EXCEPTION.match(line):
                return None
            return RankError(line, frames_of("\n".join(lines[begins[-1] : number])))
    return None


def frames_of(traceback: str) -> tuple[Frame, ...]:
    """The frames of the last traceback in a text, innermost first; that of an exception which was raised meanwhile."""
    found: list[Frame] = []
    for line in traceback.splitlines():
        if line.startswith(HEADER):
            found = []
        elif (match := _FRAME.match(line)) is not None:
            found.append(Frame((match[3] or "<compiled>")[:MAX_TEXT], match[1][-MAX_TEXT:], int(match[2])))
    return tuple(reversed(found[-MAX_FRAMES:]))


def redirected(paths: Mapping[int, str], local_rank: int) -> str:
    """The file of a rank's standard error; empty: it goes where the launcher's goes, or nowhere."""
    path = paths.get(local_rank, "")
    return "" if path == os.devnull else path
