"""Looks at the ranks of an attempt again and again while they are suspected: stacks, and what their processes do.

The monitor decides by them whether a suspect is busy or stands still. Nothing is sent to the ranks.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from rankwatch.contract.intervals import evidence_spread, watch_interval
from rankwatch.contract.messages import Collective, Evidence
from rankwatch_launcher.monitor.link import MonitorLink
from rankwatch_launcher.node.attempt import Attempt
from rankwatch_launcher.stacks import formats
from rankwatch_launcher.stacks.capture import StackReader
from rankwatch_launcher.stacks.usage import UsageMeter

SAMPLE_DEADLINE: Final = 5.0
"""Seconds that one look at all ranks of the node may take."""


class RankWatch:
    """Watches the ranks of one node; one watch at a time. Thread-safe."""

    def __init__(self, node: str, stacks: StackReader) -> None:
        self._node = node
        self._stacks = stacks
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._meter: tuple[int, str | None, UsageMeter] | None = None
        """Attempt and incident of the last watch, and what it has seen: one that prolongs it goes on from there."""
        self._closed = False

    def watch(
        self, link: MonitorLink, attempt: Attempt, incident: str | None, *, seconds: float, launchers: int = 1
    ) -> None:
        """Look at the ranks of ``attempt`` for ``seconds`` and post each look; ends a watch in progress.

        Returns earlier when :meth:`stop` is called, all ranks have ended, or all have moved.
        """
        ending = threading.Event()
        with self._lock:
            if self._closed:
                return
            self._ending.set()
            self._ending = ending
            if self._meter is None or self._meter[:2] != (attempt.number, incident):
                self._meter = (attempt.number, incident, UsageMeter())
            meter = self._meter[2]
        began, stood, looks = time.monotonic(), _positions(attempt), 0
        known: dict[int, tuple[Collective, ...]] = {}
        while (watched := time.monotonic() - began) < seconds:
            targets = [attempt.target(rank) for rank in attempt.ranks if rank.code is None]
            threads, stacks = self._stacks.sample(targets, SAMPLE_DEADLINE, known)
            moved = _positions(attempt)
            if ending.is_set() or not targets or (stood and all(moved.get(r) != at for r, at in stood.items())):
                return
            taken = time.monotonic()
            usage = meter.sample(stacks, taken, threads)
            if looks:  # the first one only has something to compare with if it prolongs another watch
                known = {stack.rank: stack.collectives for stack in stacks}
                seen = formats.bounded([replace(stack, usage=usage[stack.rank]) for stack in stacks])
                evidence = Evidence(self._node, attempt.number, incident, seen, look=looks)
                spread = random.random() * evidence_spread(launchers)
                link.post("evidence", partial(aged, evidence, taken), delay=spread)
            looks += 1
            if ending.wait(watch_interval(launchers, watched)):
                return

    def stop(self) -> None:
        """End the watch in progress."""
        with self._lock:
            self._ending.set()

    def close(self) -> None:
        """End the watch in progress, and refuse others."""
        with self._lock:
            self._closed = True
            self._ending.set()


def aged(evidence: Evidence, taken: float) -> dict[str, Any]:
    """Evidence as it is sent now; ``taken`` is on the monotonic clock."""
    return asdict(replace(evidence, age=round(time.monotonic() - taken, 3)))


def _positions(attempt: Attempt) -> dict[int, tuple[int | None, int, int]]:
    """How far the ranks are, by local rank."""
    return {rank: (r.iteration, r.progress, r.finished) for rank, r in attempt.slots.read().items()}
