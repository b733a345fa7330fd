"""The emulated ranks of some jobs that are alike: their identities, where they are in training, what they send when.

A *sender* is one rank, or one node whose Collector puts its ranks into one request. All ranks of a job are always in
the same step, as synchronous training makes them. Legend: S senders, K ranks of a sender.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from _load_report import Kind, Pace
from _load_rows import AGES, COUNTS, Row, identity_bytes, signature

from rankwatch.contract import semconv
from rankwatch.contract.intervals import histogram_seconds, window_seconds, window_spread
from rankwatch.export.exporter import JITTER
from rankwatch.export.resource import AttributeValue
from rankwatch.recording.section_statistics import REPEAT_SECONDS

RANKS_A_NODE: Final = 8
NOISE: Final = 0.02
NEVER: Final = -1e18
_NOISE_POOL: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Shape:
    """What is emulated."""

    ranks: int
    jobs: int = 1
    ranks_a_request: int = RANKS_A_NODE
    interval: float = 5.0
    """Seconds between two reports of a rank."""
    step_seconds: float = 2.5
    name: str = "emulated"
    hurried: bool = False
    """Report as soon as the last report was answered, and pretend that the interval has passed: the content of reports
    is what it is at that interval, whatever the rate."""

    def __post_init__(self) -> None:
        if not 1 <= self.jobs <= self.ranks:
            raise ValueError(f"{self.ranks} ranks cannot be in {self.jobs} jobs: each job has one rank at least")

    @property
    def ranks_a_job(self) -> int:
        return self.ranks // self.jobs


class Due(NamedTuple):
    """One request that is to be sent now."""

    sender: int
    body: bytes
    ranks: int
    kind: Kind
    due: float
    """When it should have been sent."""
    job: str = ""
    """Its job, for a proxy before several monitors."""


@dataclass(slots=True)
class EmulatedJob:
    """One job; times are on the monotonic clock."""

    id: str
    began: float
    attempt: int = 1
    first_iteration: int = 0
    hung_at: float = math.inf
    """From then on nothing moves."""
    hung_ranks: set[int] = field(default_factory=set)
    """Those whose doing it is: they have not come as far as the others."""

    def now(self, now: float) -> float:
        return min(now, self.hung_at)


class Fleet:
    """The senders of jobs of one :class:`Shape`."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._histograms = histogram_seconds(shape.ranks_a_job)
        steps = max(1, round(max(shape.interval, self._histograms) / shape.step_seconds))
        stride = 2 ** max(0, round(math.log2(window_seconds(shape.ranks_a_job) / shape.step_seconds)))
        self.pace = Pace(shape.step_seconds, steps, stride)
        self.jobs = [EmulatedJob(f"{shape.name}-{i:05d}", time.monotonic()) for i in range(shape.jobs)]
        self.members: list[tuple[int, range]] = [
            (job, range(first, min(first + shape.ranks_a_request, shape.ranks_a_job)))
            for job in range(shape.jobs)
            for first in range(0, shape.ranks_a_job, shape.ranks_a_request)
        ]
        """Of each sender its job and its ranks."""
        count = len(self.members)
        self.job_S = np.array([job for job, _ in self.members])
        self.last_S = np.full(count, NEVER)
        self.reports_S = np.zeros(count, np.int64)
        self._phase_S = np.random.default_rng(1).random(count) * shape.interval
        self.last_ns_S = np.full(count, time.time_ns())
        self.news_S = np.full(count, NEVER)
        self._later_S = np.random.default_rng(2).random(count) * window_spread(shape.ranks_a_job)
        self.steps_S = np.full(count, NEVER)
        """When each last reported the durations of finished sections; the first time is spread like all rare things."""
        self.started = {job: time.time() - 60.0 for job in range(shape.jobs)}
        self._restarted: dict[tuple[int, int], float] = {}
        self._pattern_S: list[tuple[tuple[int, ...], ...]] = []
        self._identity_S: list[npt.NDArray[np.uint8]] = []
        for sender in range(count):
            pattern, identity = self._identify(sender)
            self._pattern_S.append(pattern)
            self._identity_S.append(identity)
        self._rows: dict[tuple[object, Kind], Row] = {}
        self._noise = np.random.default_rng(0).normal(1.0, NOISE, _NOISE_POOL)
        self.due_S = np.full(count, np.inf)

    def attributes(self, job: int, rank: int) -> dict[str, AttributeValue]:
        """The resource of a rank as :mod:`rankwatch.export.resource` makes it on a node with GPUs."""
        node = job * math.ceil(self.shape.ranks_a_job / RANKS_A_NODE) + rank // RANKS_A_NODE
        host, local = f"node-{node:05d}.cluster.internal", rank % RANKS_A_NODE
        started = self._restarted.get((job, rank), self.started[job])
        # A process of its own for each start; three digits of a varint whatever it is.
        pid = 20_000 + int(started) % 10_000 + local
        return {
            "telemetry.sdk.name": "opentelemetry",
            "telemetry.sdk.language": "python",
            "telemetry.sdk.version": "1.45.0",
            semconv.HW_ID: f"GPU-8b1c2d3e-4f50-6172-{job:04d}-{rank:012d}",
            semconv.HW_NAME: "NVIDIA H100 80GB HBM3",
            "dl.data_parallel.rank": rank // RANKS_A_NODE,
            "dl.tensor_parallel.rank": local,
            semconv.SERVICE_NAME: self.shape.name,
            semconv.SERVICE_INSTANCE_ID: f"{host}-{pid}-{started:.2f}",
            semconv.HOST_NAME: host,
            semconv.PROCESS_PID: pid,
            semconv.PROCESS_START_TIME: datetime.fromtimestamp(started, UTC).isoformat(timespec="microseconds"),
            semconv.JOB_ID: self.jobs[job].id,
            semconv.ATTEMPT: self.jobs[job].attempt,
            semconv.RANK: rank,
            semconv.LOCAL_RANK: local,
            semconv.WORLD_SIZE: self.shape.ranks_a_job,
        }

    def warm_up(self) -> None:
        """Make all rows now, so that none is made while something is measured."""
        kinds = [Kind(), Kind(steps=True), Kind(steps=True, news=True), Kind(steps=True, window=True)]
        kinds += [Kind(steps=True, window=True, news=True)]
        if self._histograms:
            kinds += [kind._replace(steps=False) for kind in kinds[2:]]
        for sender in {pattern: sender for sender, pattern in enumerate(self._pattern_S)}.values():
            for kind in kinds:
                self._row(sender, kind)

    def begin(self) -> None:
        """Training begins now; the first reports are spread evenly over an interval."""
        now = time.monotonic()
        for job in self.jobs:
            job.began = now
        self.due_S = np.full(len(self.members), now) if self.shape.hurried else now + self._phase_S

    def take_due(self, now: float, room: int, held: set[int]) -> list[Due]:
        """The requests that are due, the longest due first, at most ``room``; none of senders in ``held``."""
        due = np.flatnonzero(self.due_S <= now)
        if not len(due) or room <= 0:
            return []
        due = due[np.argsort(self.due_S[due], kind="stable")]
        chosen: list[int] = []
        for sender in due.tolist():
            if sender not in held:
                chosen.append(sender)
                if len(chosen) >= room:
                    break
        return list(self.requests(chosen, now))

    def requests(
        self, senders: Sequence[int], now: float, *, ended: bool = False, content: Kind | None = None
    ) -> Iterator[Due]:
        """Reports of ``senders`` of this moment, of what is due or of a ``content``; the next are an interval later."""
        groups: dict[tuple[object, Kind], list[int]] = {}
        for sender in senders:
            kind = (content or self._kind(sender, self._moment(sender, now)))._replace(ended=ended)
            groups.setdefault((self._pattern_S[sender], kind), []).append(sender)
        interval = 0.0 if self.shape.hurried else self.shape.interval
        for (_, kind), of_kind in groups.items():
            yield from self._made(of_kind, kind, now)
            for sender in of_kind:
                moment = self._moment(sender, now)
                self.due_S[sender] = now + interval * random.uniform(1 - JITTER, 1 + JITTER)
                self.last_S[sender] = moment
                self.reports_S[sender] += 1
                if kind.news:
                    self.news_S[sender] = moment
                if kind.steps:
                    self.steps_S[sender] = moment

    def restart(self, job: int, rank: int | None = None) -> None:
        """A new process for one rank; without ``rank`` for all of a job, which then is one attempt further."""
        moment = time.time()
        emulated = self.jobs[job]
        if rank is None:
            iteration = self._iteration(emulated, time.monotonic())
            emulated.attempt += 1
            emulated.began, emulated.first_iteration = time.monotonic(), max(0, iteration)
            emulated.hung_at, emulated.hung_ranks = math.inf, set()
            self.started[job] = moment
        else:
            self._restarted[job, rank] = moment
        for sender in np.flatnonzero(self.job_S == job).tolist():
            if rank is None or rank in self.members[sender][1]:
                self._pattern_S[sender], self._identity_S[sender] = self._identify(sender)
                self.news_S[sender] = NEVER

    def _moment(self, sender: int, now: float) -> float:
        """The moment in the training of a sender's job of which it reports."""
        if not self.shape.hurried:
            return now
        pretended = float(self._phase_S[sender]) + self.shape.interval * int(self.reports_S[sender])
        job = self.jobs[int(self.job_S[sender])]
        return job.began + pretended

    def _kind(self, sender: int, now: float) -> Kind:
        job = self.jobs[int(self.job_S[sender])]
        at, before = self._iteration(job, now), self._iteration(job, float(self.last_S[sender]))
        steps = at > before and now - float(self.steps_S[sender]) >= self._histograms
        # The first windows of a process come after its first steps; those of many ranks are reported later.
        later = float(self._later_S[sender])
        at, before = self._iteration(job, now - later), self._iteration(job, float(self.last_S[sender]) - later)
        window = at // self.pace.stride > max(before, job.first_iteration) // self.pace.stride
        news = now - float(self.news_S[sender]) >= REPEAT_SECONDS
        return Kind(steps, window, news)

    def _iteration(self, job: EmulatedJob, now: float) -> int:
        """The last step completed; the one before the first when there is none."""
        trained = max(0.0, job.now(now) - job.began)
        return job.first_iteration + int(trained / self.shape.step_seconds)

    def _made(self, senders: list[int], kind: Kind, now: float) -> Iterator[Due]:
        row = self._row(senders[0], kind)
        m, k = len(senders), row.ranks
        ages, counts = np.empty((m, k, len(AGES))), np.empty((m, k, len(COUNTS)), np.int64)
        for i, sender in enumerate(senders):
            ages[i], counts[i] = self._standing(sender, self._moment(sender, now))
        start = random.randrange(_NOISE_POOL - m * k) if m * k < _NOISE_POOL else 0
        factor = np.resize(self._noise[start : start + m * k], (m, k))
        now_ns = time.time_ns()
        identity = np.stack([self._identity_S[sender] for sender in senders])
        rows = row.filled(identity, now_ns, self.last_ns_S[senders], ages, counts, factor)
        self.last_ns_S[senders] = now_ns
        for i, sender in enumerate(senders):
            job, ranks = self.members[sender]
            yield Due(sender, rows[i].tobytes(), len(ranks), kind, float(self.due_S[sender]), self.jobs[job].id)

    def _standing(self, sender: int, now: float) -> tuple[list[float], npt.NDArray[np.int64]]:
        job_index, ranks = self.members[sender]
        job = self.jobs[job_index]
        at = self._iteration(job, now)
        into_step = now - job.began - (at - job.first_iteration) * self.shape.step_seconds
        reported = self._iteration(job, now - float(self._later_S[sender]))
        window = reported // self.pace.stride * self.pace.stride
        ages = [into_step, into_step / 2, into_step, into_step / 2, max(0.0, now - job.began)]
        if job.hung_at <= now:  # entered before it hung, so all ages grow alike
            ages[1] = ages[3] = into_step - min(into_step, (job.hung_at - job.began) % self.shape.step_seconds) / 2
        counts = np.array([[at, 2, at + 1, job.first_iteration, window]] * len(ranks))
        for place, rank in enumerate(ranks):
            if rank in job.hung_ranks:
                counts[place, 1] = 1
        return ages, counts

    def _row(self, sender: int, kind: Kind) -> Row:
        key = (self._pattern_S[sender], kind)
        if key not in self._rows:
            job, ranks = self.members[sender]
            self._rows[key] = Row([self.attributes(job, rank) for rank in ranks], self.pace, kind)
        return self._rows[key]

    def _identify(self, sender: int) -> tuple[tuple[tuple[int, ...], ...], npt.NDArray[np.uint8]]:
        job, ranks = self.members[sender]
        each = [self.attributes(job, rank) for rank in ranks]
        return (
            tuple(signature(attributes) for attributes in each),
            np.frombuffer(b"".join(map(identity_bytes, each)), np.uint8),
        )
