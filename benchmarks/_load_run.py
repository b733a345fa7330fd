"""The generator: takes what is due from fleets, sends it, and does with refusals what the rank side does.

A request that is to come again later (429, 502, 503, 504, no answer) is kept, with a bound for the whole generator, and
goes out once ``Retry-After`` has passed, with backoff, or before the next one that is due, up to ten ranks' in one
request; beyond the bound the oldest is lost. A request refused for good is lost at once. A sender has one request under
way at most, like a rank's exporter.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

import _table
from _load_client import Client, Counts
from _load_fleet import Due, Fleet

from rankwatch.export.exporter import backoff
from rankwatch.export.transport import MAX_BATCH, MAX_QUEUED, SendResult, SendStatus

TURN: Final = 0.005
"""Seconds between two looks at what is due."""
KEPT_BYTES: Final = 256 * 2**20
"""Of requests that wait to be sent again, all senders together."""
A_TURN: Final = 64
"""Requests made at once at most: answers are waited for in between."""

Sender = tuple[int, int]
"""A fleet and a sender in it."""


class Generator:
    """Drives fleets against one monitor. ``actions`` are called at their second of the run."""

    def __init__(self, fleets: list[Fleet], make_client: Callable[[Callable[[Due, SendResult], None]], Client]) -> None:
        self.fleets: list[Fleet | None] = list(fleets)
        self.client = make_client(self._done)
        self.kinds: Counter[str] = Counter()
        """Reports by what was in them."""
        self.lost: Counter[str] = Counter()
        """Reports that will never arrive, by reason."""
        self.deferred = 0
        """Reports that were put off because the sender's last one had not been answered when they were due."""
        self.accepted_before = 0
        """Reports accepted before the last :meth:`forget`."""
        self.began = time.monotonic()
        self._under_way: dict[int, Sender] = {}
        self._held: list[set[int]] = [set() for _ in fleets]
        """Senders that wait for an answer, by fleet."""
        self._kept: dict[Sender, deque[Due]] = {}
        self._not_before: dict[Sender, float] = {}
        self._refusals: Counter[Sender] = Counter()
        """Of senders that were asked to come again, how often since they last delivered."""
        self._retries: list[tuple[float, Sender]] = []
        """A heap of when senders come again that were asked to."""
        self._kept_bytes = 0

    def add(self, fleet: Fleet) -> int:
        """Take in another fleet; return its number."""
        self.fleets.append(fleet)
        self._held.append(set())
        return len(self.fleets) - 1

    def remove(self, number: int) -> None:
        """Let a fleet go."""
        self.fleets[number] = None

    async def run(self, seconds: float, tick: Callable[[float], None] | None = None) -> None:
        """Send for so many seconds; ``tick`` is called at each turn with the seconds since the beginning."""
        self.began = time.monotonic()
        expire_at = self.began
        while (now := time.monotonic()) < self.began + seconds:
            self.turn(now)
            if tick is not None:
                tick(now - self.began)
            if now >= expire_at:
                self.client.expire(now)
                expire_at = now + 0.5
            await asyncio.sleep(TURN if self._waits(now) else 0)

    async def run_beside(self, work: Callable[[], None]) -> None:
        """Send while ``work`` runs on a thread."""
        working = asyncio.get_running_loop().run_in_executor(None, work)
        while not working.done():
            await self.run(0.2)
        working.result()

    def forget(self) -> None:
        """Count again from here on."""
        self.accepted_before += self.client.counts.accepted
        self.client.counts = Counts()
        self.kinds, self.lost, self.deferred = Counter(), Counter(), 0

    def due(self, now: float) -> int:
        """Reports that should have been sent by now."""
        fleets = [fleet for fleet in self.fleets if fleet is not None]
        return sum(int((fleet.due_S <= now).sum()) * fleet.shape.ranks_a_request for fleet in fleets)

    def figures(self) -> dict[str, Any]:
        """What became of the reports."""
        counts = self.client.counts
        return {
            "reports sent": counts.sent,
            "reports accepted": counts.accepted,
            "reports lost": sum(self.lost.values()),
            "lost by reason": dict(self.lost),
            "reports deferred behind an answer": self.deferred,
            "reports kept for later": self.waiting_reports,
            "answers by status": {str(status): count for status, count in sorted(counts.statuses.items())},
            "requests without an answer": dict(counts.failures),
            "partly refused": counts.rejected_points[:3],
            "bytes a report": counts.bytes / counts.sent if counts.sent else None,
            "reports by content": dict(self.kinds),
            "answer, s": _table.spread(counts.answer_seconds),
            "answer from when it was due, s": _table.spread(counts.due_seconds),
        }

    async def drain(self, seconds: float = 10.0) -> None:
        """Wait for the answers to what is under way."""
        end = time.monotonic() + seconds
        while self.client.under_way and time.monotonic() < end:
            self.client.expire(time.monotonic())
            await asyncio.sleep(TURN)

    def turn(self, now: float) -> None:
        """Send what is due and finds a place."""
        while self._retries and self._retries[0][0] <= now and self.client.room > 0:
            _, sender = heapq.heappop(self._retries)
            kept = self._kept.get(sender)
            if kept and sender[1] not in self._held[sender[0]] and now >= self._not_before.get(sender, 0.0):
                self._send_kept(sender, kept)
        for number, fleet in enumerate(self.fleets):
            if fleet is None:
                continue
            for due in fleet.take_due(now, min(A_TURN, self.client.room), self._held[number]):
                self.kinds[str(due.kind)] += due.ranks
                self.submit(number, due, now)

    def submit(self, number: int, due: Due, now: float) -> None:
        """Send one request of a fleet, behind what its sender has kept."""
        sender = (number, due.sender)
        kept = self._kept.get(sender)
        if kept is None:
            self._send(sender, due)
            return
        self._keep(sender, due)
        if now >= self._not_before.get(sender, 0.0) and kept:
            self._send_kept(sender, kept)

    @property
    def waiting_reports(self) -> int:
        """Reports that are kept to be sent again."""
        return sum(due.ranks for kept in self._kept.values() for due in kept)

    def _send_kept(self, sender: Sender, kept: deque[Due]) -> None:
        count = max(1, MAX_BATCH // kept[0].ranks)  # a Collector merges the ranks of a node, and not their reports
        batches = [kept.popleft() for _ in range(min(count, len(kept)))]
        self._kept_bytes -= sum(len(batch.body) for batch in batches)
        ranks = sum(batch.ranks for batch in batches)
        self._send(sender, batches[-1]._replace(body=b"".join(batch.body for batch in batches), ranks=ranks))

    def _send(self, sender: Sender, due: Due) -> None:
        self._held[sender[0]].add(sender[1])
        self._under_way[id(due)] = sender
        self.client.send(due)

    def _done(self, due: Due, answer: SendResult) -> None:
        sender = self._under_way.pop(id(due))
        self._held[sender[0]].discard(sender[1])
        fleet = self.fleets[sender[0]]
        if fleet is not None and not fleet.shape.hurried and fleet.due_S[sender[1]] <= time.monotonic():
            self.deferred += due.ranks
        if answer.status is SendStatus.DELIVERED:
            self._not_before.pop(sender, None)
            self._refusals.pop(sender, None)
            if self._kept.get(sender):
                heapq.heappush(self._retries, (0.0, sender))  # the rest of what it has kept
            else:
                self._kept.pop(sender, None)
        elif answer.status is SendStatus.RETRY_LATER:
            now = time.monotonic()
            self._not_before[sender] = now + answer.retry_after
            if answer.retry_after:
                self._refusals[sender] += 1
                again = now + backoff(answer.retry_after, self._refusals[sender])
                heapq.heappush(self._retries, (again, sender))
            self._kept.setdefault(sender, deque()).appendleft(due)
            self._kept_bytes += len(due.body)
            self._bound(sender)
        else:
            self.lost[answer.reason] += due.ranks

    def _keep(self, sender: Sender, due: Due) -> None:
        self._kept[sender].append(due)
        self._kept_bytes += len(due.body)
        self._bound(sender)

    def _bound(self, sender: Sender) -> None:
        kept = self._kept[sender]
        while kept and (len(kept) > MAX_QUEUED or self._kept_bytes > KEPT_BYTES):
            dropped = kept.popleft()
            self._kept_bytes -= len(dropped.body)
            self.lost["backlog"] += dropped.ranks

    def _waits(self, now: float) -> bool:
        """Whether nothing is to be sent at once."""
        return self.client.room <= 0 or not any(
            fleet is not None and (fleet.due_S <= now).sum() > len(self._held[number])
            for number, fleet in enumerate(self.fleets)
        )
