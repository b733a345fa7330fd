"""The names under which the monitor publishes to Prometheus. Dashboards and alerts are checked against this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family: name (with ``_total`` where it is a counter), type, labels and meaning."""

    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    meaning: str


JOB_STATE: Final = Family(
    "rankwatch_job_state", "gauge", ("job", "state"), "1 for the state a job is in, 0 for the others"
)
JOB_RANKS: Final = Family("rankwatch_job_ranks", "gauge", ("job", "state"), "ranks of a job by state")
JOB_WORLD_SIZE: Final = Family("rankwatch_job_world_size", "gauge", ("job",), "ranks a job should have")
JOB_NODES: Final = Family("rankwatch_job_nodes", "gauge", ("job", "role"), "launchers of a job by what they do for it")
JOB_ATTEMPT: Final = Family("rankwatch_job_attempt", "gauge", ("job",), "number of the current attempt")
JOB_ITERATION: Final = Family("rankwatch_job_iteration", "gauge", ("job",), "last step any rank completed")
JOB_RESTARTS: Final = Family("rankwatch_job_restarts_total", "counter", ("job",), "restarts of the ranks")
JOB_OBSERVE_ONLY: Final = Family("rankwatch_job_observe_only", "gauge", ("job",), "1 while nothing is acted upon")
GOODPUT: Final = Family(
    "rankwatch_goodput_ratio", "gauge", ("job",), "part of a job's life that was spent on new steps"
)
JOB_TIME: Final = Family(
    "rankwatch_job_time_seconds_total",
    "counter",
    ("job", "bucket"),
    "a job's time by what it was spent on, counted once that is known for good",
)
INCIDENTS: Final = Family(
    "rankwatch_incidents_total", "counter", ("job", "kind"), "incidents opened, by kind of verdict"
)
INCIDENT_OPEN: Final = Family(
    "rankwatch_incident_open", "gauge", ("job", "kind", "action"), "1 while an incident is open"
)
CULPRIT: Final = Family(
    "rankwatch_culprit",
    "gauge",
    ("job", "rank", "host", "class", "reason"),
    "1 for each rank blamed in an open incident",
)
TELEMETRY_DROPPED: Final = Family(
    "rankwatch_telemetry_dropped_total", "counter", ("job", "reason"), "what the ranks' telemetry lost"
)
INGEST_REPORTS: Final = Family("rankwatch_ingest_reports_total", "counter", (), "rank reports taken in")
INGEST_REJECTED: Final = Family(
    "rankwatch_ingest_rejected_total", "counter", ("reason",), "items that were turned away"
)
TICK_SECONDS: Final = Family("rankwatch_tick_seconds", "gauge", (), "how long the last judgement of all jobs took")
TICK_ERRORS: Final = Family("rankwatch_tick_errors_total", "counter", (), "judgements of a job that failed")
STORE_ERRORS: Final = Family(
    "rankwatch_store_errors", "gauge", (), "rows the database has refused since it last worked"
)

FAMILIES: Final = (
    JOB_STATE,
    JOB_RANKS,
    JOB_WORLD_SIZE,
    JOB_NODES,
    JOB_ATTEMPT,
    JOB_ITERATION,
    JOB_RESTARTS,
    JOB_OBSERVE_ONLY,
    GOODPUT,
    JOB_TIME,
    INCIDENTS,
    INCIDENT_OPEN,
    CULPRIT,
    TELEMETRY_DROPPED,
    INGEST_REPORTS,
    INGEST_REJECTED,
    TICK_SECONDS,
    TICK_ERRORS,
    STORE_ERRORS,
)
