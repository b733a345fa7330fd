"""Asks launchers for what their ranks printed, when somebody reads it; bounded in questions, bytes and time.

A question waits beside the directives of its launcher, whose long poll is answered at once. Nothing of it is stored.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rankwatch.contract.rank_output import ANSWER_SECONDS, MOST_BYTES, LogAnswer, LogGap, LogRequest
from rankwatch_monitor.ingest.limits import Limits
from rankwatch_monitor.ingest.rejection import Refusal

AT_ONCE: Final = 4
"""Readings of one reader that wait for launchers at the same time."""
_MINUTE: Final = 60.0
_MOST_KEPT: Final = 4_000
"""Readers whose bytes are counted, before those of more than a minute ago are forgotten."""
EXPANSION: Final = 4
"""Characters that stand for one byte, at most."""


class _Waiting:
    """A question to one launcher."""

    def __init__(self, request: LogRequest) -> None:
        self.request = request
        self.answer: asyncio.Future[LogAnswer] = asyncio.get_running_loop().create_future()


class LogRequests:
    """The questions that are asked now. Used on the event loop only."""

    def __init__(self, wake: Callable[[str, str], object], limits: Limits) -> None:
        """``wake`` answers the long poll of a launcher of a job."""
        self._wake, self._limits = wake, limits
        self._unsent: dict[tuple[str, str], list[LogRequest]] = {}
        self._waiting: dict[tuple[str, str, str], _Waiting] = {}
        """By job, launcher and question."""
        self._reading: dict[str, int] = {}
        self._taken: dict[str, tuple[float, float]] = {}
        """By reader: bytes not given back yet, and when that was so."""

    def asked(self, job_id: str, node: str) -> bool:
        """Whether there is a question for a launcher."""
        return (job_id, node) in self._unsent

    def take(self, job_id: str, node: str) -> list[LogRequest]:
        """The questions for a launcher, once."""
        return self._unsent.pop((job_id, node), [])

    def answered(self, job_id: str, answer: LogAnswer) -> bool:
        """Take an answer; False: nobody waits for it. What was not asked for is left out."""
        waiting = self._waiting.get((job_id, answer.node, answer.request))
        if waiting is None or waiting.answer.done():
            return False
        asked = waiting.request
        wanted = set(asked.ranks)
        parts = [each for each in answer.parts if each.rank in wanted][: 2 * len(wanted)]
        gaps = {str(rank): answer.gaps[str(rank)] for rank in asked.ranks if str(rank) in answer.gaps}
        paths = {rank: answer.paths.get(rank, "")[:1_000] for rank in gaps}
        bounded = tuple(each.bounded(EXPANSION * asked.most) for each in parts)
        waiting.answer.set_result(replace(answer, parts=bounded, gaps=gaps, paths=paths))
        return True

    async def ask(
        self,
        job_id: str,
        wanted: Mapping[str, Sequence[int]],
        asked_for: LogRequest,
        *,
        reader: str,
        now: float,
    ) -> dict[str, LogAnswer]:
        """The answers by launcher, once all have come or the time is over; without an answer its gaps say so.

        Args:
            wanted: ranks by launcher.
            asked_for: which part of each log; its ranks and number differ between launchers.
            reader: who reads, for the bounds.

        Raises:
            Refusal: 429, the reader has read as much as it may in a minute, or waits for too many answers already.
        """
        if self._reading.get(reader, 0) >= AT_ONCE:
            raise Refusal(429, "too_many_logs", f"{AT_ONCE} of your readings of logs wait already", retry_after=1)
        self._charge(reader, min(MOST_BYTES, asked_for.most * sum(map(len, wanted.values()))), now)
        self._reading[reader] = self._reading.get(reader, 0) + 1
        asked: dict[tuple[str, str, str], _Waiting] = {}
        try:
            for node, ranks in wanted.items():
                request = replace(asked_for, id=secrets.token_hex(8), ranks=tuple(ranks))
                asked[job_id, node, request.id] = _Waiting(request)
                self._unsent.setdefault((job_id, node), []).append(request)
            self._waiting |= asked
            for node in wanted:
                self._wake(job_id, node)
            if asked:
                await asyncio.wait([each.answer for each in asked.values()], timeout=ANSWER_SECONDS)
        finally:
            self._forget(asked)
            self._reading[reader] -= 1
            if not self._reading[reader]:
                del self._reading[reader]
        return {node: _answer(node, each) for (_, node, _), each in asked.items()}

    def _forget(self, asked: Iterable[tuple[str, str, str]]) -> None:
        for job_id, node, number in asked:
            self._waiting.pop((job_id, node, number), None)
            left = [each for each in self._unsent.get((job_id, node), ()) if each.id != number]
            if left:
                self._unsent[job_id, node] = left
            else:
                self._unsent.pop((job_id, node), None)

    def _charge(self, reader: str, size: int, now: float) -> None:
        room = self._limits.log_bytes_per_token
        before, at = self._taken.get(reader, (0.0, now))
        held = max(0.0, before - room * (now - at) / _MINUTE) + size
        if held > room:
            wait = math.ceil((held - room) / room * _MINUTE)
            words = "you have read as much of logs as you may in a minute"
            raise Refusal(429, "too_many_logs", words, retry_after=wait)
        self._taken[reader] = held, now
        if len(self._taken) > _MOST_KEPT:
            self._taken = {key: kept for key, kept in self._taken.items() if now - kept[1] < _MINUTE}


def _answer(node: str, waiting: _Waiting) -> LogAnswer:
    if waiting.answer.done():
        return waiting.answer.result()
    request = waiting.request
    return LogAnswer(node, request.id, gaps={str(rank): LogGap.NO_ANSWER for rank in request.ranks})
