"""What ranks print, fetched on demand: the question of the monitor to one launcher, and its answer.

A launcher finds questions beside its directives (``log_requests``) and answers each with ``POST /jobs/{id}/logs``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from rankwatch.contract.text import one_line

MOST_RANKS: Final = 16
"""Ranks of one question."""
MOST_BYTES: Final = 128 << 10
"""Bytes of the logs of one question, all ranks together."""
LEAST_BYTES: Final = 1 << 10
LONGEST_LINE: Final = 4_000
"""Characters of one line; what follows is cut."""
STREAMS: Final = ("output", "stdout", "stderr")
"""Names of logs: of both streams in one file, as they were printed, or of each."""
ANSWER_SECONDS: Final = 8.0
"""How long a launcher's answer is waited for."""


class LogGap(StrEnum):
    """Why there is no log of a rank."""

    NOT_HERE = "not_here"
    """The rank did not run on this node in that attempt, or its output is no longer kept."""
    NO_FILE = "no_file"
    """Its output goes to no file: to a terminal or a pipe, or it is not kept."""
    UNREADABLE = "unreadable"
    """The file cannot be read."""
    UNSENT = "unsent"
    """The launcher was started with ``--no-send-logs``."""
    NO_ANSWER = "no_answer"
    """The launcher did not answer in time."""
    LOST = "lost"
    """The node was lost."""
    ENDED = "ended"
    """The launcher has ended; its files may still be there."""
    UNKNOWN = "unknown"
    """No launcher is known to have run it."""


@dataclass(frozen=True, slots=True)
class LogRequest:
    """The logs of which ranks, and which part of each."""

    id: str
    attempt: int
    ranks: tuple[int, ...]
    most: int
    """Bytes of each log."""
    after: Mapping[str, int] = field(default_factory=dict)
    """Where to go on, by :func:`key`; a log that is not named is read from its beginning. Empty: the end of each."""
    whole: bool = False
    """The last line is left out as long as it has no line break."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of one log."""

    rank: int
    stream: str
    """One of :data:`STREAMS`."""
    path: str
    lines: tuple[str, ...] = ()
    first: int = 0
    """Bytes at the beginning that are no longer kept."""
    begin: int = 0
    end: int = 0
    """Where the part begins and ends, in bytes of what was printed."""
    size: int = 0
    """Bytes that were printed so far."""

    def bounded(self, most: int) -> LogPart:
        """It as it is shown: lines that no terminal obeys, no more than ``most`` bytes of them, the last ones."""
        kept: list[str] = []
        for line in reversed(self.lines):
            line = one_line(line, LONGEST_LINE)
            most -= len(line.encode(errors="replace")) + 1
            if most < 0:
                break
            kept.append(line)
        first, begin, end = (max(0, each) for each in (self.first, self.begin, self.end))
        path = one_line(self.path, 1_000)
        stream = self.stream if self.stream in STREAMS else STREAMS[0]
        size = max(end, self.size)
        return replace(
            self, stream=stream, path=path, lines=(*kept[::-1],), first=first, begin=begin, end=end, size=size
        )


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """``POST /jobs/{id}/logs``: what a launcher has of them."""

    node: str
    request: str
    parts: tuple[LogPart, ...] = ()
    gaps: Mapping[str, str] = field(default_factory=dict)
    """By rank: a :class:`LogGap`."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """By rank: the file that a gap is about."""


def key(rank: int, stream: str) -> str:
    """Names a log of a job."""
    return f"{rank}.{stream}"


def cursor(after: Mapping[str, int]) -> str:
    """Positions in logs as the text that a reader gives back."""
    return ",".join(f"{name}.{at}" for name, at in sorted(after.items()))


def read_cursor(text: str) -> dict[str, int]:
    """The positions in such a text.

    Raises:
        ValueError: it is none.
    """
    found: dict[str, int] = {}
    for each in filter(None, text.split(",")):
        rank, stream, at = _fields(each.split("."))
        if stream not in STREAMS or not (rank.isascii() and rank.isdecimal() and at.isascii() and at.isdecimal()):
            raise ValueError(f"{each[:60]!r} is no RANK.STREAM.BYTES")
        if len(rank) > 9 or len(at) > 18:
            raise ValueError(f"{each[:60]!r} has a number that is too large")
        found[key(int(rank), stream)] = int(at)
    if len(found) > MOST_RANKS * len(STREAMS):
        raise ValueError(f"it names {len(found)} logs, the limit is {MOST_RANKS * len(STREAMS)}")
    return found


def _fields(parts: Sequence[str]) -> tuple[str, str, str]:
    if len(parts) != 3:
        raise ValueError(f"{'.'.join(parts)[:60]!r} is no RANK.STREAM.BYTES")
    rank, stream, at = parts
    return rank, stream, at
