"""How ranks exit, and the exceptions that end them."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Final

from rankwatch.contract.enums import ProcessState
from rankwatch.contract.exits import is_consequence, signal_name
from rankwatch.contract.messages import TRACEBACK, Frame, RankStack

MAX_TEXT: Final = 300
SHOWN_FRAMES: Final = 3
SCRIPT_ERRORS: Final = ("SyntaxError", "IndentationError", "TabError", "ImportError", "ModuleNotFoundError")
_SENTENCES: Final = 200
"""Characters of an explanation that a sentence can hold."""
_PASSING: Final = re.compile(
    r"cuda|nccl|\bhip\b|rocm|memory|device|time[d ]*out|connect|network|temporar|unavailable|busy|retry|locked"
    r"|rate limit|rate exceeded|throttl|slow ?down|internal error|try again|too many|\b(429|50[0-4])\b|stale"
    r"|disk quota|no space",
    re.IGNORECASE,
)
"""Texts of exceptions that a restart may be free of."""


@dataclass(frozen=True, slots=True)
class RankError:
    """The uncaught exception of one rank."""

    message: str
    """``ValueError: bad batch``, with the further lines of its text."""
    frames: tuple[Frame, ...] = ()
    """Of its traceback, innermost first."""
    at: float = 0.0
    """Unix time; 0: unknown."""
    passing: bool = False
    """An OSError that may not come back, of a file system or a network."""
    recorded: bool = False
    """The script wrote the error file itself, with torch's ``@record``."""

    @property
    def kind(self) -> str:
        """The exception's type."""
        return self.message.partition(":")[0]

    @property
    def first_line(self) -> str:
        """Type and first line of the text."""
        return self.message.partition("\n")[0]

    @property
    def consequence(self) -> bool:
        """It is about the connection to another rank, whose end is likely the cause."""
        return is_consequence(self.message)

    @property
    def of_script(self) -> bool:
        """The script, or a module that it imports, cannot be compiled or imported."""
        return self.kind in SCRIPT_ERRORS

    @property
    def may_pass(self) -> bool:
        """The same may not happen again: its text, or its type, is about a device, a network or a file system."""
        return self.passing or self.consequence or bool(_PASSING.search(self.message))

    def where(self) -> str:
        """The innermost frames: ``collate (data.py:41) < <module> (train.py:9)``; empty: unknown."""
        return " < ".join(f"{f.function} ({f.file.rpartition('/')[2]}:{f.line})" for f in self.frames[:SHOWN_FRAMES])

    def stack(self, rank: int, pid: int, now: float = 0.0) -> RankStack:
        """It as evidence; ``now``: Unix time, 0: not known."""
        text = " / ".join(filter(None, map(str.strip, self.message.splitlines())))
        raised = max(0.0, now - self.at) if now and self.at else None
        return RankStack(rank, pid, TRACEBACK, self.frames, ProcessState.EXITED, text[:MAX_TEXT], raised=raised)


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank exited."""

    rank: int
    local_rank: int
    pid: int
    code: int
    """The exit code, or minus the signal that killed it."""
    message: str = ""
    """The rank's last notice, or its exception."""
    had_finished: bool = False
    """The rank had called ``rankwatch.shutdown()``; once judged, also: all its peers here exited with code 0."""
    expected: bool = False
    """The other ranks can continue without it; once judged: they do, and a reserve rank takes its place."""
    error: RankError | None = None
    """The exception that ended it, as far as it is known."""
    iteration: int | None = None
    """The last step that it completed; None: not known."""

    @property
    def consequence(self) -> bool:
        """It likely follows from the end of another rank: of its connection, or an abort by a collective library."""
        if self.error is not None:
            return self.error.consequence
        return self.code == -signal.SIGABRT and not self.had_finished

    @property
    def signal(self) -> str | None:
        """Name of the signal that killed it."""
        return signal_name(-self.code) if self.code < 0 else None

    @property
    def first_line(self) -> str:
        """The first line of the message: its whole sentences within 200 characters, else 400 characters at most.

        CUDA's "out of memory" goes on for 500 characters; the incident keeps all of them with the traceback.
        """
        lines = self.message.strip().splitlines()
        line = lines[0] if lines else ""
        if len(line) > _SENTENCES:
            line = line[: line.rfind(". ", 0, _SENTENCES) + 1] or line[:400]
        # A path in an error message may hold bytes that are not valid text.
        return line.encode("utf-8", "backslashreplace").decode()
