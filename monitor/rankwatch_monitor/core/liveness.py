"""Liveness of launchers and the whole job. That of ranks is in :mod:`.ranks`, by the same rule:

=========  ==========================================================================================================
of         is silent when
=========  ==========================================================================================================
a rank     nothing was received for longer than ``silence_timeout`` and than three of its own report intervals:
           other emitters may export once a minute
a node     its launcher is behind the newest message of the job by more than ``silence_timeout``; before that, from
           three missing heartbeats on, it is *quiet*: shown, and nothing follows from it
the job    nothing was received of any rank or launcher for longer than both (median interval); then it is *lost*
=========  ==========================================================================================================

Silence counts from ``job.silence_since`` at the earliest, and ranks that shut down by themselves are never silent.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rankwatch.contract.enums import JobState
from rankwatch.contract.intervals import LAUNCHER_HEARTBEAT_SECONDS
from rankwatch_monitor.core.job import Job, Node
from rankwatch_monitor.core.ranks import SILENT_INTERVALS, report_intervals, silence_limit

FOREIGN_REPORT_INTERVAL: Final = 60.0
"""Seconds between exports of another emitter until two were received of it or of other ranks of the job: the default of
OpenTelemetry's SDKs."""
TERMINAL_STATES: Final = (JobState.FINISHED, JobState.FAILED, JobState.STOPPED, JobState.LOST)
"""States that a job does not leave by itself."""
REGISTRATION_SECONDS: Final = 60.0
"""Seconds in which launchers register after the first report of a rank."""
COMPACT_AFTER: Final = 300.0
"""Seconds of silence after which a job in a terminal state drops what only a running one needs."""


QUIET_AFTER: Final = SILENT_INTERVALS * LAUNCHER_HEARTBEAT_SECONDS
"""Seconds without a message after which a launcher is quiet."""


def node_quiet(node: Node, at: float) -> bool:
    """Whether several messages of a launcher were missing at a time, unix seconds."""
    return at - node.seen > QUIET_AFTER


def node_silent(job: Job, node: Node) -> bool:
    """Whether messages of the job arrive and none of this launcher; it polls for directives every few seconds."""
    silence = job.policy.silence_timeout
    return silence is not None and node.ended is None and job.last_heard - node.seen > silence


def all_shut_down(job: Job) -> bool:
    """Whether every rank that has reported in this attempt shut down by itself."""
    return job.instrumented and bool(np.all(job.columns.shut_down_R | ~job.columns.reported_R))


def lost(job: Job, now: float) -> bool:
    """Whether the whole job is silent and its ranks had not shut down."""
    limit, silence = job.policy.silence_timeout, now - max(job.last_heard, job.silence_since)
    if limit is None or silence <= limit or all_shut_down(job):
        return False
    return silence > SILENT_INTERVALS * usual_report_interval(job)


def all_silent(job: Job, now: float) -> bool:
    """Whether no rank of the attempt is alive: each shut down or is silent."""
    columns, silence = job.columns, job.policy.silence_timeout
    silent_R = now - columns.last_heard_R > silence_limit(columns, np.inf if silence is None else silence)
    return bool(np.all(~columns.reported_R | columns.shut_down_R | silent_R))


def running(job: Job, now: float) -> bool:
    """Whether a job runs, also one that a message, maybe a forged one, has just reported as ended.

    A job without launchers runs once its ranks have reported for longer than launchers need to register.
    """
    if not job.nodes:
        reported_since = np.nanmin(job.columns.first_report_R, initial=now)
        return bool(now - reported_since > REGISTRATION_SECONDS) and not all_silent(job, now)
    if job.ended is None:
        return True
    quiet = SILENT_INTERVALS * max(usual_report_interval(job), LAUNCHER_HEARTBEAT_SECONDS)
    return now - job.last_heard <= quiet and not all_shut_down(job)


def message_received(job: Job, now: float) -> None:
    """Record that a message of the job arrived; after a pause of the whole job, silence counts from here.

    Such a pause means that the monitor could not receive: it was suspended, or the network was down.
    """
    pause, job.last_heard = now - job.last_heard, max(job.last_heard, now)
    silence = job.policy.silence_timeout
    if silence is not None and pause > silence / 2 and pause > SILENT_INTERVALS * usual_report_interval(job):
        job.silence_baseline = now


def usual_report_interval(job: Job) -> float:
    """Median report interval of the ranks, in seconds; 0 while none is known."""
    intervals_R = report_intervals(job.columns)
    known_R = intervals_R[~np.isnan(intervals_R)]
    return float(np.median(known_R)) if len(known_R) else 0.0
