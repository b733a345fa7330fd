"""What the ranks of this node printed in the last attempts: the files that hold it, and the parts that are asked for.

Nothing is sent unasked. A question names ranks and attempt by their numbers, never a file.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rankwatch.contract.files import opened
from rankwatch.contract.rank_output import (
    LEAST_BYTES,
    MOST_BYTES,
    MOST_RANKS,
    LogAnswer,
    LogGap,
    LogPart,
    LogRequest,
    key,
)
from rankwatch.contract.text import INDENT
from rankwatch_launcher.monitor.link import MonitorLink

ATTEMPTS: Final = 5
"""The last ones, whose logs can be asked for."""
WAITING: Final = 16
"""Questions that wait for their answer; the oldest is dropped."""
EXPANSION: Final = 4
"""Characters that stand for one byte, at most: ``\\x00``."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(slots=True)
class Log:
    """A file that holds what one rank printed."""

    rank: int
    stream: str
    path: str
    """``os.devnull``: nothing holds it."""
    first: int = 0
    """Bytes printed before what is still kept."""
    base: int = 0
    """Bytes printed before the file begins; less than ``first`` where its beginning is a hole."""


class RankOutput:
    """The logs of this node's ranks, by attempt. Questions are answered on a thread of their own: a disk may hang."""

    def __init__(self, node: str, *, sent: bool = True) -> None:
        """``sent``: what ranks print may leave the node."""
        self._node, self._sent = node, sent
        self._attempts: dict[int, tuple[Log, ...]] = {}
        self._waiting: deque[LogRequest] = deque(maxlen=WAITING)
        self._asked = threading.Semaphore(0)
        self._link: MonitorLink | None = None
        self._thread: threading.Thread | None = None

    def begin(self, attempt: int, logs: Sequence[Log]) -> None:
        """The ranks of an attempt were started."""
        self._attempts = dict([*self._attempts.items(), (attempt, tuple(logs))][-ATTEMPTS:])

    def connect(self, link: MonitorLink) -> None:
        """Answer over this link."""
        self._link = link
        link.on_log_request = self.receive

    def receive(self, request: LogRequest) -> None:
        """Answer a question soon, on another thread."""
        self._waiting.append(request)
        self._asked.release()
        if self._thread is None:
            self._thread = threading.Thread(target=self._answer_all, name="rankwatch-logs", daemon=True)
            self._thread.start()

    def answer(self, request: LogRequest) -> LogAnswer:
        """What this node has of the logs that are asked for."""
        ranks = request.ranks[:MOST_RANKS]
        if not self._sent:
            return LogAnswer(self._node, request.id, gaps={str(rank): LogGap.UNSENT for rank in ranks})
        kept = self._attempts.get(request.attempt, ())
        parts: list[LogPart] = []
        gaps: dict[str, str] = {}
        paths: dict[str, str] = {}
        most = max(LEAST_BYTES, min(request.most, MOST_BYTES // max(1, len(ranks))))
        for rank in ranks:
            logs = [log for log in kept if log.rank == rank]
            held = [log for log in logs if log.path not in ("", os.devnull)]
            if not held:
                gaps[str(rank)] = LogGap.NO_FILE if logs else LogGap.NOT_HERE
            for log in held:
                after = request.after.get(key(rank, log.stream), 0) if request.after else None
                try:
                    parts.append(read_part(log, after, most // len(held), whole=request.whole))
                except OSError:
                    gaps[str(rank)], paths[str(rank)] = LogGap.UNREADABLE, log.path
        return LogAnswer(self._node, request.id, tuple(parts), gaps, paths)

    def _answer_all(self) -> None:
        link = self._link
        assert link is not None
        connection = link.connection()
        while True:
            self._asked.acquire()
            try:
                request = self._waiting.popleft()
            except IndexError:  # it was dropped
                continue
            link.try_post(connection, "logs", asdict(self.answer(request)))
            connection.close()


def read_part(log: Log, after: int | None, most: int, *, whole: bool) -> LogPart:
    """At most ``most`` bytes of a log as lines: its end, or what follows the position ``after``.

    Raises:
        OSError: the file cannot be read, or is none.
    """
    with opened(Path(log.path), follow=False) as file:
        first, size = max(log.first, log.base), log.base + os.fstat(file.fileno()).st_size
        begin = max(first, size - most) if after is None else min(max(first, after), size)
        data = os.pread(file.fileno(), min(most, size - begin), begin - log.base)
    if after is None and begin > first and b"\n" in data:  # the first line is not whole
        skipped = data.index(b"\n") + 1
        begin, data = begin + skipped, data[skipped:]
    end, rest = begin + len(data), data.rpartition(b"\n")[2]
    if rest and b"\n" in data and (whole or end < size):
        data = data[: -len(rest)]
    elif rest and whole and len(data) < most:
        data = b""
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    shown = tuple(as_shown(line.decode(errors="replace")) for line in lines)
    part = LogPart(log.rank, log.stream, log.path, shown, first, begin, begin + len(data), size)
    return part.bounded(EXPANSION * most)


def as_shown(line: str) -> str:
    """A line without colours, after the last carriage return: a progress bar begins each of its states with one."""
    visible = _COLOUR.sub("", line.rstrip()).rpartition("\r")[2]
    return visible.replace("\t", INDENT)
