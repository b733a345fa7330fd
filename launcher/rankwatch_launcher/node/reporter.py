"""Proxy reports: the launcher reports for ranks that cannot report for themselves, or not soon enough.

A rank reports through its own exporter thread. No report arrives when the process is stopped, when an extension holds
its GIL, when it never called ``rankwatch.init()``, and when the network between it and the monitor fails. The launcher
reads the slots and /proc twice a second and reports in its place; how often in jobs of many launchers is set by
:mod:`rankwatch.contract.intervals`.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from rankwatch.contract.enums import NodeRole, ProcessState
from rankwatch.contract.intervals import (
    CHECK_INTERVAL,
    LAUNCHER_HEARTBEAT_SECONDS,
    launcher_heartbeat_seconds,
    omits_redundant_reports,
    proxy_report_seconds,
)
from rankwatch.contract.limits import RankLimits
from rankwatch.contract.messages import NodeObservation, RankObservation
from rankwatch.recording.shared_slots import PHASE_RUNNING, Reading
from rankwatch_launcher import procfs
from rankwatch_launcher.log import logger
from rankwatch_launcher.monitor.link import MonitorLink
from rankwatch_launcher.node.attempt import Attempt

LIVENESS_LIMIT: Final = 2.0
"""Seconds, twice the default export interval: a liveness thread that has not run for this long cannot get the GIL."""
ENDS_AT_ONCE: Final = 2.0
"""Seconds in which most processes end: those of a large job, which end together, are not reported before."""
MARGIN_SECONDS: Final = 0.01
"""How long after the next limit expires the ranks are observed again."""

_FROZEN: Final = (ProcessState.STOPPED, ProcessState.UNINTERRUPTIBLE)


# What is reported -----------------------------------------------------------------------------------------------------


class Cause(StrEnum):
    """Why the launcher reports for a rank."""

    FROZEN = "frozen"
    """Its process is stopped, or stuck in the kernel."""
    LEAVING = "leaving"
    """Its process is about to end, which may take a while: the others may wait for it meanwhile."""
    NO_GIL = "no gil"
    """Its liveness thread does not get the GIL."""
    LIMIT = "limit"
    """It exceeds a limit; it reports that itself, too."""
    UNDELIVERED = "undelivered"
    """Its reports do not arrive."""


class ProxyReason(NamedTuple):
    """A cause, with what is past its limit."""

    cause: Cause
    exceeded: tuple[str, ...] = ()
    """Limits that the rank exceeds: the monitor judges by the last report."""


def observation(rank: int, pid: int, state: ProcessState, reading: Reading | None) -> RankObservation:
    """What the launcher observes of a rank."""
    if reading is None:
        return RankObservation(rank=rank, pid=pid, process_state=state)
    return RankObservation(
        rank=rank,
        pid=pid,
        process_state=state,
        pulse_age=reading.pulse_age,
        beats=reading.beats,
        heartbeat_age=reading.heartbeat_age,
        iteration=reading.iteration,
        progress=reading.progress,
        first_iteration=reading.resumed_at,
        first_iteration_age=reading.first_iteration_age,
        open_sections=dict(reading.open_sections),
        idle=reading.idle,
        uses_sections=bool(reading.finished or reading.open_sections),
        quiet=reading.quiet,
        first_time=tuple(sorted(reading.first_time)),
        leaving=reading.leaving,
    )


def proxy_reason(
    state: ProcessState, reading: Reading | None, limits: RankLimits, launchers: int = 1
) -> ProxyReason | None:
    """Why the launcher must report for a rank; None when the rank reports for itself."""
    running = reading is not None and reading.phase == PHASE_RUNNING
    exceeded = tuple(limits.passed(reading.activity())[0]) if reading is not None and running else ()
    if state in _FROZEN:
        return ProxyReason(Cause.FROZEN, exceeded)
    if reading is not None and reading.leaving is not None:
        if reading.leaving < ENDS_AT_ONCE and omits_redundant_reports(launchers):
            return None
        return ProxyReason(Cause.LEAVING)
    if reading is None or not running:
        return None
    if reading.pulse_age > LIVENESS_LIMIT:
        return ProxyReason(Cause.NO_GIL, exceeded)
    if exceeded and not (reading.reports and omits_redundant_reports(launchers)):
        return ProxyReason(Cause.LIMIT, exceeded)
    if reading.overdue is not None:
        return ProxyReason(Cause.UNDELIVERED)
    return None


# When it is reported --------------------------------------------------------------------------------------------------


class JobScale(NamedTuple):
    """The size of the job, which limits how often a launcher reports."""

    launchers: int = 1
    silence: float | None = None
    """Seconds after which the monitor takes a launcher for lost."""
    has_rank_0: bool = False
    """This launcher has rank 0: it sends heartbeats in jobs of any size."""

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats."""
        return (
            LAUNCHER_HEARTBEAT_SECONDS if self.has_rank_0 else launcher_heartbeat_seconds(self.launchers, self.silence)
        )

    @property
    def report_interval(self) -> float:
        """Seconds between two reports about the same ranks."""
        return proxy_report_seconds(self.launchers, self.silence)


class ReportSchedule:
    """When a launcher reports: changes at once, lasting conditions repeatedly. Pure.

    Reports may stop arriving from all ranks of a job at once, for a reason outside them: large jobs spread such proxy
    reports over the interval, and retries of reports that failed.
    """

    def __init__(self, now: float, chance: Callable[[], float] = random.random) -> None:
        """``chance`` returns a number from 0 to 1 that spreads launchers over an interval."""
        self.reported: frozenset[int] = frozenset()
        """Ranks in the last delivered report; their recovery is reported once."""
        self._chance = chance
        self._delivered: set[tuple[int, Cause, tuple[str, ...]]] = set()
        """What the monitor knows."""
        self._role = (NodeRole.ACTIVE, "")
        self._last = now - math.inf
        self._repeat_at = math.inf
        """When lasting conditions are reported again."""
        self._retry_at = now

    def due(self, now: float, scale: JobScale, reasons: Mapping[int, ProxyReason], role: tuple[NodeRole, str]) -> bool:
        """Whether to report now. True counts as reported: call :meth:`delivered` or :meth:`failed` next."""
        interval, changed = scale.report_interval, _changes(reasons) != self._delivered
        condition = bool(reasons or self.reported)
        if not condition:
            self._repeat_at = math.inf
        elif self._repeat_at == math.inf:
            self._repeat_at = now + (self._chance() * interval if interval > CHECK_INTERVAL else 0.0)
        due = now >= self._repeat_at or changed or role != self._role or now - self._last >= scale.heartbeat_interval
        if not due or now < self._retry_at:
            return False
        self._last = now
        if condition and interval > CHECK_INTERVAL:
            self._repeat_at = now + interval
        return True

    def delivered(self, reasons: Mapping[int, ProxyReason], role: tuple[NodeRole, str]) -> None:
        """The monitor accepted the report."""
        self.reported, self._delivered, self._role = frozenset(reasons), _changes(reasons), role

    def failed(self, now: float, scale: JobScale) -> None:
        """The report was not accepted."""
        interval = scale.report_interval
        self._retry_at = now + (self._chance() * interval if interval > CHECK_INTERVAL else 0.0)


def _changes(reasons: Mapping[int, ProxyReason]) -> set[tuple[int, Cause, tuple[str, ...]]]:
    """The part of the reasons whose change is reported at once."""
    return {(rank, r.cause, r.exceeded) for rank, r in reasons.items() if r.cause is not Cause.UNDELIVERED}


# The thread -----------------------------------------------------------------------------------------------------------


class NodeView(NamedTuple):
    """What the reporter needs to know about its node."""

    name: str
    launchers: int
    silence: float | None
    role: tuple[NodeRole, str]
    settings: Mapping[str, Any]
    attempt: Attempt | None


_Observed = list[tuple[RankObservation, ProxyReason | None]]


class ProxyReporter:
    """Observes the ranks of one node on a thread and reports for them; also sends the launcher's heartbeat."""

    def __init__(self, view: Callable[[], NodeView], link: MonitorLink) -> None:
        self._view, self._link = view, link
        self._failures = 0
        """Failed observations."""
        self._end = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="rankwatch-observe", daemon=True).start()

    def stop(self) -> None:
        """End the thread soon; does not wait."""
        self._end.set()

    def post_progress(self) -> None:
        """Post the ranks' progress: the attempt may end before their next report. In large jobs rank 0's node only."""
        node = self._view()
        current = node.attempt
        if current is None or (
            omits_redundant_reports(node.launchers) and all(rank.rank != 0 for rank in current.ranks)
        ):
            return
        observed, _ = self._observe(current, node)
        report = NodeObservation(node.name, current.number, tuple(o for o, _ in observed))
        observed_at = time.monotonic()
        self._link.post("observations", lambda: asdict(replace(report, age=time.monotonic() - observed_at)))

    def _run(self) -> None:
        connection = self._link.connection()
        schedule, next_limit = ReportSchedule(time.monotonic()), CHECK_INTERVAL
        while not self._end.wait(min(CHECK_INTERVAL, next_limit + MARGIN_SECONDS)):
            node = self._view()
            current = node.attempt
            observed, next_limit = self._observe(current, node) if current is not None else ([], CHECK_INTERVAL)
            now = time.monotonic()
            scale = JobScale(node.launchers, node.silence, any(o.rank == 0 for o, _ in observed))
            reasons = {o.rank: reason for o, reason in observed if reason is not None}
            if not schedule.due(now, scale, reasons, node.role):
                continue
            # Ranks of the last report are included once more: their recovery may not be reported otherwise.
            ranks = tuple(o for o, _ in observed if o.rank in reasons or o.rank in schedule.reported)
            number = current.number if current is not None else 0
            report = NodeObservation(node.name, number, ranks, role=node.role[0], role_reason=node.role[1])
            if self._link.try_post(connection, "observations", asdict(report)):
                schedule.delivered(reasons, node.role)
            else:
                schedule.failed(time.monotonic(), scale)
            if scale.heartbeat_interval == math.inf:
                connection.close()  # the next report may be hours away

    def _observe(self, current: Attempt, node: NodeView) -> tuple[_Observed, float]:
        """Observations of all ranks with their proxy reasons, and the seconds until the next limit expires."""
        try:
            return self._observe_ranks(current, node)
        except Exception as error:  # noqa: BLE001  # a rank can write anything into its slots
            if not self._failures:
                logger.warning("the ranks cannot be observed: %r; their own reports still count", error)
            self._failures += 1
            return [], CHECK_INTERVAL

    def _observe_ranks(self, current: Attempt, node: NodeView) -> tuple[_Observed, float]:
        limits, readings = RankLimits.from_settings(node.settings), current.slots.read()
        observed: _Observed = []
        next_limit = CHECK_INTERVAL
        for rank in current.ranks:
            if rank.code is not None:
                continue
            state, reading = procfs.process_state(rank.pid), readings.get(rank.local_rank)
            if reading is not None:
                next_limit = min(next_limit, limits.passed(reading.activity())[1])
            seen = observation(rank.rank, rank.pid, state, reading)
            observed.append((seen, proxy_reason(state, reading, limits, node.launchers)))
        return observed, next_limit
