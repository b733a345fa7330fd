"""Hangs of emulated ranks, by a schedule, and how soon the monitor reports them.

A hang is written as ``rank=17,at=30,kind=hang``: from the 30th second on rank 17 stays in its step and the others wait
for it, in job 0 unless ``job=`` states otherwise. What is measured begins when the monitor *could* know by its limit:
once the section ``step`` has been open for that long. The ranks of a hung job know its limits where a launcher has
handed them down: with ``wake=1`` all of them report when the limit is passed, spread as large jobs spread their news
and by the 0.2 s for which a Collector gathers.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

import numpy as np
from _load_fleet import Fleet
from _load_measure import Api

from rankwatch.contract.intervals import burst_spread
from rankwatch.contract.semconv import STEP_SECTION

GATHERED: Final = 0.2
"""Seconds for which a Collector's batch processor gathers by default."""
LOOK: Final = 0.05
"""Seconds between two looks for the incident."""


@dataclass(frozen=True, slots=True)
class Hang:
    """One hang of the schedule."""

    at: float
    rank: int
    job: int = 0
    wake: bool = False


def parse(text: str) -> Hang:
    """Read ``rank=17,at=30,kind=hang``.

    Raises:
        ValueError: it makes no sense; the text states why.
    """
    pairs = dict(part.strip().partition("=")[::2] for part in text.split(",") if part.strip())
    if unknown := pairs.keys() - {"kind", "at", "rank", "job", "wake"}:
        raise ValueError(f"fault {text!r} has {', '.join(sorted(unknown))}: use kind, at, rank, job, wake")
    if pairs.get("kind") != "hang" or "rank" not in pairs:
        raise ValueError(f"fault {text!r} is not the hang of a rank: write rank=17,at=30,kind=hang")
    try:
        at, rank, job = float(pairs.get("at", 30)), int(pairs["rank"]), int(pairs.get("job", 0))
    except ValueError:
        raise ValueError(f"fault {text!r} has a value that is no number: write rank=17,at=30,kind=hang") from None
    return Hang(at, rank, job, pairs.get("wake", "0") not in ("0", ""))


@dataclass(slots=True)
class Detection:
    """What came of a hang."""

    hang: Hang
    seconds: float | None = None
    """From the moment the limit was passed; None: it was not found."""
    printed: str = ""


@dataclass
class Schedule:
    """Applies hangs to a fleet at their time, and looks for the reports of each on its own thread."""

    fleet: Fleet
    hangs: list[Hang]
    make_api: Callable[[], Api]
    limit: float = 10.0
    """Seconds: the limit of the section ``step`` that the jobs of a hang are given."""
    patience: float = 120.0
    """Seconds after the limit for which a detection is waited for."""
    detections: list[Detection] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    _pending: list[Hang] = field(default_factory=list)
    _limited: set[int] = field(default_factory=set)
    _woken: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pending = sorted(self.hangs, key=lambda hang: hang.at)
        jobs, ranks = self.fleet.shape.jobs, self.fleet.shape.ranks_a_job
        self._spread = GATHERED + burst_spread(ranks)
        for hang in self.hangs:
            if not (0 <= hang.job < jobs and 0 <= hang.rank < ranks):
                there = f"there are jobs 0 to {jobs - 1} with ranks 0 to {ranks - 1}"
                raise ValueError(f"fault of rank {hang.rank} in job {hang.job}: {there}")

    def tick(self, elapsed: float) -> None:
        """Do what is due after so many seconds of the run; on the generator's thread."""
        while self._pending and elapsed >= self._pending[0].at:
            self.apply(self._pending.pop(0))
        now = time.monotonic()
        for due in [each for each in self._woken if each[0] <= now]:
            self._woken.remove(due)
            mine = np.flatnonzero(self.fleet.job_S == due[1])
            self.fleet.due_S[mine] = now + np.random.default_rng().random(len(mine)) * self._spread

    def apply(self, hang: Hang) -> None:
        """Let a rank hang now."""
        fleet, now = self.fleet, time.monotonic()
        job, detection = fleet.jobs[hang.job], Detection(hang)
        self.detections.append(detection)
        job.hung_at, job.hung_ranks = now, {hang.rank}
        entered = job.began + (now - job.began) // fleet.shape.step_seconds * fleet.shape.step_seconds
        if hang.wake:
            self._woken.append((entered + self.limit + 0.005, hang.job))
        watch = threading.Thread(target=self._watch, args=(detection, job.id, entered + self.limit), daemon=True)
        watch.start()
        self.threads.append(watch)

    def prepare(self) -> None:
        """Give the jobs that are to hang their limit, once the monitor knows them; blocks until it does."""
        api = self.make_api()
        for hang in self.hangs:
            self.set_limit(api, hang.job)

    def set_limit(self, api: Api, job: int) -> None:
        """Set the limit of a job's step; tries until the monitor knows the job."""
        end = time.monotonic() + self.patience
        while job not in self._limited and time.monotonic() < end:
            changes = {"section_timeouts": {STEP_SECTION: self.limit}, "first_time_timeout": None}
            if api.change_policy(self.fleet.jobs[job].id, changes):
                self._limited.add(job)
            else:
                time.sleep(LOOK)

    def finish(self) -> None:
        """Wait for the detections that are still looked for."""
        for thread in self.threads:
            thread.join(self.patience)

    def _watch(self, detection: Detection, job: str, limit_at: float) -> None:
        api = self.make_api()
        seen = {each["id"] for each in api.incidents(quote(job))}
        # Looking is load, too: it begins shortly before there can be something to see.
        time.sleep(max(0.0, limit_at - 1.0 - time.monotonic()))
        while (now := time.monotonic()) < limit_at + self.patience:
            fresh = [each for each in api.incidents(quote(job)) if each["id"] not in seen]
            if fresh:
                detection.seconds, detection.printed = time.monotonic() - limit_at, str(fresh[-1]["reason"])
                return
            time.sleep(LOOK * random.uniform(0.9, 1.1) if now - limit_at < 10 else 10 * LOOK)
