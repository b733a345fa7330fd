"""Faults of emulated ranks, by a schedule, and how soon the monitor reports them.

How this works
--------------
A fault is written as ``rank=17,at=30,kind=hang``: at the 30th second, of rank 17, in job 0 unless ``job=`` states
otherwise. What is measured begins when the monitor *could* know by its limit:

=========  ==============================================  ============================================================
kind       what is emulated                                measured from, to
=========  ==============================================  ============================================================
hang       the rank stays in its step and the others wait  the section ``step`` has been open for its limit, an incident
silent     its telemetry is cut; it trains on              its last report is as old as the limit, an incident
slow       its own work takes ``by=`` (1.2) times as long  the fault itself, the rank is named as a straggler
replaced   another process reports for the rank; without   the fault itself, the job shows its new attempt (nothing is
           ``rank=`` for all of the job, one attempt on    measured of a single rank: no alarm is what is wanted)
dies       nothing comes of the job any more               its last report is as old as the limit, the job is lost
=========  ==============================================  ============================================================

The ranks of a hung job know its limits where a launcher has handed them down: with ``wake=1`` all of them report
when the limit is passed, spread as large jobs spread their news and by the 0.2 s for which a Collector gathers.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import numpy as np
from _load_fleet import Fleet
from _load_measure import Api

from rankwatch.contract.intervals import burst_spread
from rankwatch.contract.semconv import STEP_SECTION

KINDS: Final = ("hang", "silent", "slow", "replaced", "dies")
GATHERED: Final = 0.2
"""Seconds for which a Collector's batch processor gathers by default."""
LOOK: Final = 0.05
"""Seconds between two looks for the incident."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the schedule."""

    kind: str
    at: float
    rank: int | None = None
    job: int = 0
    by: float = 1.2
    wake: bool = False


def parse(text: str) -> Fault:
    """Read ``rank=17,at=30,kind=hang``.

    Raises:
        ValueError: it makes no sense; the text states why.
    """
    pairs = dict(part.strip().partition("=")[::2] for part in text.split(",") if part.strip())
    unknown = pairs.keys() - {"kind", "at", "rank", "job", "by", "wake"}
    if unknown:
        raise ValueError(f"fault {text!r} has {', '.join(sorted(unknown))}: use kind, at, rank, job, by, wake")
    kind = pairs.get("kind", "")
    if kind not in KINDS:
        raise ValueError(f"fault {text!r} is of kind {kind!r}: use one of {', '.join(KINDS)}")
    if kind in ("hang", "silent", "slow") and "rank" not in pairs:
        raise ValueError(f"fault {text!r} names no rank: write rank=17,at=30,kind={kind}")
    try:
        rank = int(pairs["rank"]) if "rank" in pairs else None
        at, job, by = float(pairs.get("at", 30)), int(pairs.get("job", 0)), float(pairs.get("by", 1.2))
    except ValueError:
        raise ValueError(f"fault {text!r} has a value that is no number: write rank=17,at=30,kind={kind}") from None
    return Fault(kind, at, rank, job, by, pairs.get("wake", "0") not in ("0", ""))


@dataclass(slots=True)
class Detection:
    """What came of a fault."""

    fault: Fault
    seconds: float | None = None
    """From the moment the limit was passed; None: it was not found, or there was nothing to find."""
    printed: str = ""


@dataclass
class Schedule:
    """Applies faults to a fleet at their time, and looks for the reports of each on its own thread."""

    fleet: Fleet
    faults: list[Fault]
    make_api: Callable[[], Api]
    limit: float = 10.0
    """Seconds: the limit of the section ``step`` that the jobs of a hang are given."""
    patience: float = 120.0
    """Seconds after the limit for which a detection is waited for."""
    detections: list[Detection] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    _pending: list[Fault] = field(default_factory=list)
    _limited: set[int] = field(default_factory=set)
    _woken: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pending = sorted(self.faults, key=lambda fault: fault.at)
        jobs, ranks = self.fleet.shape.jobs, self.fleet.shape.ranks_a_job
        self._spread = GATHERED + burst_spread(ranks)
        for fault in self.faults:
            if not 0 <= fault.job < jobs or (fault.rank is not None and not 0 <= fault.rank < ranks):
                there = f"there are jobs 0 to {jobs - 1} with ranks 0 to {ranks - 1}"
                raise ValueError(f"fault of rank {fault.rank} in job {fault.job}: {there}")

    def tick(self, elapsed: float) -> None:
        """Do what is due after so many seconds of the run; on the generator's thread."""
        while self._pending and elapsed >= self._pending[0].at:
            self.apply(self._pending.pop(0))
        now = time.monotonic()
        for due in [each for each in self._woken if each[0] <= now]:
            self._woken.remove(due)
            mine = np.flatnonzero(self.fleet.job_S == due[1])
            self.fleet.due_S[mine] = now + np.random.default_rng().random(len(mine)) * self._spread

    def apply(self, fault: Fault) -> Detection:
        """Let a fault happen now."""
        fleet, now = self.fleet, time.monotonic()
        job = fleet.jobs[fault.job]
        detection = Detection(fault)
        self.detections.append(detection)
        if fault.kind == "hang" and fault.rank is not None:
            job.hung_at = now
            job.hung_ranks = {fault.rank}
            entered = job.began + (now - job.began) // fleet.shape.step_seconds * fleet.shape.step_seconds
            if fault.wake:
                self._woken.append((entered + self.limit + 0.005, fault.job))
            self._watch(detection, job.id, lambda _: entered + self.limit, self._incident)
        elif fault.kind == "silent" and fault.rank is not None:
            fleet.silent.add((fault.job, fault.rank))
            last = float(fleet.last_S[self._sender(fault.job, fault.rank)])
            self._watch(detection, job.id, lambda api: last + _silence(api, job.id), self._incident)
        elif fault.kind == "slow" and fault.rank is not None:
            fleet.factors[fault.job, fault.rank] = fault.by
            rank = fault.rank
            self._watch(detection, job.id, lambda _: now, lambda api, name, _: _straggler(api, name, rank))
        elif fault.kind == "replaced":
            fleet.restart(fault.job, fault.rank)
            if fault.rank is None:
                attempt = job.attempt
                self._watch(detection, job.id, lambda _: now, lambda api, name, _: _attempt(api, name, attempt))
        elif fault.kind == "dies":
            fleet.end(fault.job)
            last = float(fleet.last_S[fleet.job_S == fault.job].max())
            self._watch(
                detection, job.id, lambda api: last + _silence(api, job.id), lambda api, name, _: _lost(api, name)
            )
        return detection

    def prepare(self) -> None:
        """Give the jobs that are to hang their limit, once the monitor knows them; blocks until it does."""
        api = self.make_api()
        for fault in self.faults:
            if fault.kind == "hang":
                self.set_limit(api, fault.job)

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

    def _sender(self, job: int, rank: int) -> int:
        return next(i for i, (of, ranks) in enumerate(self.fleet.members) if of == job and rank in ranks)

    def _incident(self, api: Api, job: str, seen: set[str]) -> str | None:
        reported = api.get(f"/jobs/{quote(job)}/incidents")
        fresh = [each for each in (reported or {"incidents": []})["incidents"] if each["id"] not in seen]
        return str(fresh[-1]["reason"]) if fresh else None

    def _watch(
        self,
        detection: Detection,
        job: str,
        passed: Callable[[Api], float],
        look: Callable[[Api, str, set[str]], str | None],
    ) -> None:
        def watch() -> None:
            api = self.make_api()
            known = api.get(f"/jobs/{quote(job)}/incidents") or {"incidents": []}
            seen = {each["id"] for each in known["incidents"]}
            limit_at = passed(api)
            # Looking is load, too: it begins shortly before there can be something to see.
            time.sleep(max(0.0, limit_at - 1.0 - time.monotonic()))
            while (now := time.monotonic()) < limit_at + self.patience:
                if (printed := look(api, job, seen)) is not None:
                    detection.seconds, detection.printed = time.monotonic() - limit_at, printed
                    return
                time.sleep(LOOK * random.uniform(0.9, 1.1) if now - limit_at < 10 else 10 * LOOK)

        thread = threading.Thread(target=watch, name=f"watch-{detection.fault.kind}", daemon=True)
        thread.start()
        self.threads.append(thread)


def _silence(api: Api, job: str) -> float:
    policy: dict[str, Any] = api.get(f"/jobs/{quote(job)}/policy") or {}
    return float(policy.get("silence_timeout") or 60.0)


def _straggler(api: Api, job: str, rank: int) -> str | None:
    reported = api.get(f"/jobs/{quote(job)}/stragglers") or {"stragglers": []}
    return next((str(each["reason"]) for each in reported["stragglers"] if each["rank"] == rank), None)


def _attempt(api: Api, job: str, attempt: int) -> str | None:
    shown = (api.get(f"/jobs/{quote(job)}") or {}).get("attempt", 0)
    return f"attempt {shown}" if shown >= attempt else None


def _lost(api: Api, job: str) -> str | None:
    reported = api.get(f"/jobs/{quote(job)}") or {}
    return str(reported["reason"] or reported["state"]) if reported.get("state") == "lost" else None
