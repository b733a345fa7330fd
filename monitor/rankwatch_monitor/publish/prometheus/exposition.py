"""Encodes all jobs as ``/metrics``. Nothing is kept between scrapes."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

import rankwatch
from rankwatch.contract.enums import RESTARTS, Action, Cause, JobState, StragglerVerdict, VerdictKind
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.incident.lifecycle import verdicts_of
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.lateness import PARTS
from rankwatch_monitor.core.straggler.scores import Scores
from rankwatch_monitor.core.views import communication, downtime, job_view, rankings, verdict
from rankwatch_monitor.core.views.job_verdict import finding
from rankwatch_monitor.publish.prometheus import names as names
from rankwatch_monitor.publish.prometheus.names import Sample

__all__ = ["CONTENT_TYPE", "exposition"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""What ``generate_latest()`` writes; prometheus-client names it since 0.23 only."""
WORST: Final = 5
"""Ranks published by name for each score."""
NAMED: Final = 100
"""Culprits, and open stragglers (the costliest first), published by name."""

LATEST: Final = 10
"""Incidents of a job published one by one."""

_Family = CounterMetricFamily | GaugeMetricFamily


class Own(NamedTuple):
    """Metrics of the monitor itself."""

    reports: int
    rejected: Mapping[str, int]
    tick_seconds: float
    tick_errors: int
    store_errors: int
    tick_age: float = 0.0
    """Seconds since the last tick."""
    not_judged: int = 0
    """Jobs whose last evaluation failed."""
    store_waiting: int = 0
    store_lost: int = 0
    store_fenced: int = 0
    """Rows, as :class:`.store.repository.Repository` counts them."""
    publish_errors: Mapping[str, int] = {}
    """By publisher."""
    published: Sequence[Sample] = ()
    """Metrics of publishers (:meth:`Publishing.samples`)."""


def exposition(jobs: Iterable[Job], own: Own, now: float) -> bytes:
    """The response to a scrape at ``now`` (unix seconds)."""
    return generate_latest(_Snapshot(jobs, own, now))


class _Snapshot(Collector):
    def __init__(self, jobs: Iterable[Job], own: Own, now: float) -> None:
        self._jobs, self._own, self._now = jobs, own, now
        self._families: dict[str, _Family] = {}

    def collect(self) -> Iterator[_Family]:
        for family in names.FAMILIES:
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            self._families[family.name] = kind(family.name, family.meaning, labels=family.labels)
        for job in self._jobs:
            self._job(job, self._now)
        self._monitor()
        yield from self._families.values()

    def _add(self, family: names.Family, value: float, *labels: str) -> None:
        self._families[family.name].add_metric(labels, value)

    def _job(self, job: Job, now: float) -> None:
        state, reason = verdict.job_state(job, now)
        for each in JobState:
            self._add(names.JOB_STATE, float(each is state), job.id, each)
        if reason:
            self._add(names.JOB_REASON, 1.0, job.id, state, reason)
        self._add(names.JOB_LAST_HEARD, job.last_heard, job.id)
        self._add(names.JOB_INSTRUMENTED, float(job.instrumented), job.id)
        codes_R = job_view.rank_states(job, verdicts_of(job, now), now)
        counts = np.bincount(codes_R, minlength=len(job_view.RANK_STATES))
        for code, rank_state in enumerate(job_view.RANK_STATES):
            self._add(names.JOB_RANKS, float(counts[code]), job.id, rank_state)
        self._add(names.JOB_WORLD_SIZE, job.world_size, job.id)
        self._add(names.JOB_ATTEMPT, job.attempt, job.id)
        self._add(names.JOB_STALE_REPORTS, job.stale.count, job.id)
        for role, launchers in nodes.counts(job).items():
            self._add(names.JOB_NODES, launchers, job.id, role)
        for check, failing in nodes.failing(job).items():
            self._add(names.JOB_NODES_FAILING, failing, job.id, check)
        if (step := verdict.step(job)) is not None:
            self._add(names.JOB_ITERATION, step, job.id)
        self._add(names.JOB_RESTARTS, job.restarts, job.id)
        self._add(names.JOB_RESTARTS_LEFT, max(0, job.restart_budget - job.restarts), job.id)
        self._add(names.JOB_OBSERVE_ONLY, float(job.policy.observe_only), job.id)
        if (ratio := verdict.goodput(job)) is not None:
            self._add(names.GOODPUT, ratio, job.id)
        for bucket, seconds in job.ledger.counted.items():
            self._add(names.JOB_TIME, seconds, job.id, bucket)
        for name, logged in job.logged.latest.items():
            self._add(names.JOB_LOGGED, logged.value, job.id, name)
        for name, non_finite in job.logged.non_finite.items():  # also zeros, as increase() needs a first value
            self._add(names.JOB_LOGGED_NON_FINITE, non_finite, job.id, name)
        self._incidents(job)
        self._performance(job, now)
        for reason, lost in job.dropped.items():
            self._add(names.TELEMETRY_DROPPED, lost, job.id, reason)

    def _incidents(self, job: Job) -> None:
        for kind in VerdictKind:  # also zeros: increase() does not see a counter that begins at 1
            self._add(names.INCIDENTS, job.incident_counts.get(kind, 0), job.id, kind)
        incident = job.open_incident
        if incident is not None:
            self._add(names.INCIDENT_OPEN, 1.0, job.id, incident.kind, incident.action)
            for culprit in incident.culprits[:NAMED]:
                where = (job.id, str(culprit.rank), culprit.host, culprit.kind)
                self._add(names.CULPRIT, 1.0, *where, incident.reason)
        for latest in [each for each in job.incidents if each.confirmed and not each.provisional][-LATEST:]:
            first = latest.culprits[0] if latest.culprits else None
            blamed = (str(first.rank), first.host, str(first.kind)) if first is not None else ("", "", "")
            outcome = "open" if latest.open else latest.outcome or "closed"
            what = (job.id, latest.id, latest.kind, *blamed, latest.reason, outcome)
            self._add(names.INCIDENT_OPENED, latest.opened_at, *what)
            if (total := downtime.total(job, latest)) is not None:
                self._add(names.INCIDENT_SECONDS, total, job.id, latest.id)
        for wanted, reason in list(dict.fromkeys(_withheld(job)))[:WORST]:
            self._add(names.ACTION_WITHHELD, 1.0, job.id, wanted, reason)

    def _performance(self, job: Job, now: float) -> None:
        """Scores and stragglers; the number of series does not depend on the number of ranks."""
        performance = job.performance
        found = finding(job, now).verdict
        for each in StragglerVerdict:
            self._add(names.JOB_VERDICT, float(each is found), job.id, each)
        costliest = performance.open_stragglers[:NAMED]
        for labels in dict.fromkeys((str(s.rank), s.host, s.cause, s.reason) for s in costliest):
            self._add(names.STRAGGLER, 1.0, job.id, *labels)
        for cause in Cause:
            self._add(names.STRAGGLERS, job.performance.found.get(cause, 0), job.id, cause)
        self._add(names.STRAGGLER_COST, performance.cost_gpu_hours * 3600.0, job.id)
        for part, part_R in zip(PARTS, job.performance.parts_RP.T, strict=True):
            if (seconds := rankings.min_median_max(part_R)) is not None:
                self._add(names.STEP_PART_SECONDS, seconds["median"], job.id, part)
        for kind in communication.kinds(job):
            for aggregation, rate in (("min", kind.min), ("median", kind.median), ("max", kind.max)):
                self._add(names.COMMUNICATION_BANDWIDTH, rate, job.id, kind.kind, kind.operation, aggregation)
        for row in communication.slowest(job, WORST):
            self._add(names.GROUP_BANDWIDTH, row.bus, job.id, row.group, row.operation)
            self._add(names.GROUP_BANDWIDTH_RATIO, row.bus / (row.usual or row.bus), job.id, row.group, row.operation)
        for source, number in job.performance.sources.items():
            self._add(names.KERNEL_SOURCE_RANKS, number, job.id, source)
        if performance.scores is not None:
            self._scores(job, performance.scores)

    def _scores(self, job: Job, scores: Scores) -> None:
        for name, score_R in rankings.gpu_scores(scores).items():
            score = name.removeprefix("gpu_")
            self._add(names.SCORED_RANKS, float(np.sum(~np.isnan(score_R))), job.id, score)
            for aggregation, value in (rankings.min_median_max(score_R) or {}).items():
                self._add(names.GPU_SCORE, value, job.id, score, aggregation)
            for rank in rankings.lowest(score_R, WORST):
                where = (job.id, str(rank), rankings.host_of(job, rank))
                self._add(names.RANK_SCORE, float(score_R[rank]), *where, score)
        for rank in rankings.highest(scores.lateness_R, WORST):
            where = (job.id, str(rank), rankings.host_of(job, rank))
            self._add(names.RANK_LATENESS, max(0.0, float(scores.lateness_R[rank])), *where)
        if (step := rankings.min_median_max(scores.step_R)) is not None:
            self._add(names.STEP_SECONDS, step["median"], job.id)
        self._add(names.SCORING_SECONDS, scores.seconds, job.id)

    def _monitor(self) -> None:
        own = self._own
        self._add(names.INGEST_REPORTS, own.reports)
        for reason, items in own.rejected.items():
            self._add(names.INGEST_REJECTED, items, reason)
        self._add(names.TICK_SECONDS, own.tick_seconds)
        self._add(names.TICK_AGE, own.tick_age)
        self._add(names.TICK_ERRORS, own.tick_errors)
        self._add(names.JOBS_NOT_JUDGED, own.not_judged)
        self._add(names.STORE_ERRORS, own.store_errors)
        self._add(names.STORE_WAITING, own.store_waiting)
        self._add(names.STORE_LOST, own.store_lost)
        self._add(names.STORE_FENCED, own.store_fenced)
        for publisher, errors in own.publish_errors.items():
            self._add(names.PUBLISH_ERRORS, errors, publisher)
        for family, value, labels in own.published:
            self._add(family, value, *labels)
        self._add(names.BUILD_INFO, 1.0, rankwatch.__version__, platform.python_version())


def _withheld(job: Job) -> Iterator[tuple[Action, str]]:
    """Actions that the policy asks for and that are not taken, with the reason."""
    wanted, incident = job.policy.on_hang, job.open_incident
    # STOP instead of a restart: the restart budget is used up. What only waits for confirmation is not withheld.
    less = {Action.LOG, Action.STOP} if wanted in RESTARTS else {Action.LOG}
    if incident is not None and not incident.decided and incident.action in less - {wanted}:
        yield wanted, incident.action_reason
    elif incident is not None and incident.held and wanted is not Action.LOG:
        yield wanted, incident.held_because
    if job.policy.on_straggler is not Action.LOG:
        for straggler in job.performance.open_stragglers:
            if straggler.action is Action.LOG and straggler.action_reason:
                yield job.policy.on_straggler, straggler.action_reason
