"""Why a panel is empty: each states it in its description and in place of the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grafana.queries import FAMILIES, families_of
from rankwatch_monitor.publish.prometheus import names as names

_NO_SCORE: Final = "no rank has a score: it takes kernel timings and a few windows of steps"
_NO_WINDOW: Final = "no rank has sent a window of steps yet"
_NO_WEBHOOK: Final = "the monitor has no webhook"
REASONS: Final = {
    names.JOB_REASON: "the state has no reason: nothing is wrong",
    names.JOB_ITERATION: "no step has completed yet",
    names.JOB_LOGGED: "the script logs no value by rankwatch.log()",
    names.JOB_LOGGED_NON_FINITE: "the script logs no value by rankwatch.log()",
    names.GOODPUT: "no step has been counted yet",
    names.JOB_TIME: "no time is counted yet: it takes about 30 s",
    names.INCIDENTS: "no incident since the monitor watches the job",
    names.INCIDENT_OPEN: "no incident is open",
    names.INCIDENT_OPENED: "no incident in this range",
    names.CULPRIT: "no incident is open, or its culprit is not known",
    names.ACTION_WITHHELD: "no action is withheld",
    names.STRAGGLER: "no rank makes the others wait",
    names.STRAGGLERS: "no straggler was found",
    names.GPU_SCORE: _NO_SCORE,
    names.RANK_SCORE: _NO_SCORE,
    names.SCORED_RANKS: _NO_SCORE,
    names.RANK_LATENESS: _NO_WINDOW,
    names.SCORING_SECONDS: _NO_WINDOW,
    names.STEP_SECONDS: _NO_WINDOW,
    names.STEP_PART_SECONDS: _NO_WINDOW,
    names.COMMUNICATION_BANDWIDTH: "no step with collectives of known size was profiled",
    names.GROUP_BANDWIDTH_RATIO: "no process group has enough peers or windows to be compared",
    names.KERNEL_SOURCE_RANKS: "no rank has reported a source of kernel timings",
    names.TELEMETRY_DROPPED: "no telemetry was dropped",
    names.INGEST_REJECTED: "no item was rejected",
    names.PUBLISH_ERRORS: "the monitor has no publisher",
    names.WEBHOOK_MESSAGES: _NO_WEBHOOK,
    names.WEBHOOK_WAITING: _NO_WEBHOOK,
}
"""By the family that a panel shows."""
NO_RULES: Final = "no step has been counted yet, or Prometheus has not loaded the rules"
NO_JOB: Final = "Prometheus has scraped no such job in this range"
NO_MONITOR: Final = "Prometheus has scraped no monitor in this range"


def empty_because(expressions: Sequence[str]) -> str:
    """Why none of the expressions has a result; that of a family in :data:`REASONS`, else of the job or monitor."""
    asked = {FAMILIES[name] for each in expressions for name in families_of(each)}
    named = [reason for family, reason in REASONS.items() if family in asked]
    if named:
        return named[0]
    return NO_JOB if any("job" in family.labels for family in asked) else NO_MONITOR
