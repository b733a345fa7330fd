"""All metric families of ``/metrics``. Dashboards and alerts are checked against this table."""

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


Sample = tuple[Family, float, tuple[str, ...]]
"""One value: its family, the value, and the values of the family's labels."""

JOB_STATE: Final = Family(
    "rankwatch_job_state", "gauge", ("job", "state"), "1 for the state a job is in, 0 for the others"
)
JOB_STATE_ENTERED: Final = Family(
    "rankwatch_job_state_entered_total",
    "counter",
    ("job", "state"),
    "times that a job entered a state",
)
JOB_REASON: Final = Family(
    "rankwatch_job_reason",
    "gauge",
    ("job", "state", "reason"),
    "1 with the reason of a job's state",
)
JOB_LAST_HEARD: Final = Family(
    "rankwatch_job_last_heard_timestamp_seconds",
    "gauge",
    ("job",),
    "last report of a job's ranks or launchers, unix seconds",
)
JOB_INSTRUMENTED: Final = Family(
    "rankwatch_job_instrumented",
    "gauge",
    ("job",),
    "1 if a rank has reported in this attempt; else only process exits are known",
)
JOB_RANKS: Final = Family("rankwatch_job_ranks", "gauge", ("job", "state"), "ranks of a job by state")
JOB_WORLD_SIZE: Final = Family("rankwatch_job_world_size", "gauge", ("job",), "ranks a job should have")
JOB_NODES: Final = Family("rankwatch_job_nodes", "gauge", ("job", "role"), "launchers of a job by what they do for it")
JOB_NODES_FAILING: Final = Family(
    "rankwatch_job_nodes_failing_check",
    "gauge",
    ("job", "check"),
    "launchers whose node fails a check and takes no part",
)
JOB_ATTEMPT: Final = Family("rankwatch_job_attempt", "gauge", ("job",), "number of the current attempt")
JOB_STALE_REPORTS: Final = Family(
    "rankwatch_job_stale_reports_total", "counter", ("job",), "reports of another attempt or process, not applied"
)
JOB_ITERATION: Final = Family("rankwatch_job_iteration", "gauge", ("job",), "last step any rank completed")
JOB_RESTARTS: Final = Family("rankwatch_job_restarts_total", "counter", ("job",), "restarts of the ranks")
JOB_RESTARTS_LEFT: Final = Family(
    "rankwatch_job_restarts_left", "gauge", ("job",), "restarts that the policy still allows (max_restarts)"
)
JOB_OBSERVE_ONLY: Final = Family("rankwatch_job_observe_only", "gauge", ("job",), "1 while the monitor takes no action")
GOODPUT: Final = Family(
    "rankwatch_goodput_ratio",
    "gauge",
    ("job",),
    "part of a job's life in steps that were kept",
)
JOB_TIME: Final = Family(
    "rankwatch_job_time_seconds_total",
    "counter",
    ("job", "bucket"),
    "a job's time by what it was spent on, counted once that is known; lost steps as they are done again",
)
JOB_LOGGED: Final = Family(
    "rankwatch_job_logged_value", "gauge", ("job", "name"), "the last value of a name the training script logs"
)
JOB_LOGGED_NON_FINITE: Final = Family(
    "rankwatch_job_logged_non_finite_total",
    "counter",
    ("job", "name"),
    "logged values that were NaN or infinite; at most 32 names of a job",
)
INCIDENTS: Final = Family(
    "rankwatch_incidents_total", "counter", ("job", "kind"), "incidents opened, by kind of verdict"
)
INCIDENT_OPEN: Final = Family(
    "rankwatch_incident_open", "gauge", ("job", "kind", "action"), "1 while an incident is open"
)
INCIDENT_OPENED: Final = Family(
    "rankwatch_incident_opened_timestamp_seconds",
    "gauge",
    ("job", "incident", "kind", "rank", "host", "class", "reason", "outcome"),
    'when each of the 10 latest confirmed incidents opened, unix seconds; the outcome is "open" until it is closed',
)
INCIDENT_SECONDS: Final = Family(
    "rankwatch_incident_seconds",
    "gauge",
    ("job", "incident"),
    "what each of these cost: from the fault to the first new step, and the lost steps",
)
CULPRIT: Final = Family(
    "rankwatch_culprit",
    "gauge",
    ("job", "rank", "host", "class", "reason"),
    "1 for each rank blamed in an open incident, at most 100 of them",
)
ACTION_WITHHELD: Final = Family(
    "rankwatch_action_withheld",
    "gauge",
    ("job", "wanted", "reason"),
    "1 while the policy wants an action and it is not taken, and why",
)
GPU_SCORE: Final = Family(
    "rankwatch_gpu_score",
    "gauge",
    ("job", "score", "aggregation"),
    "kernel timings against a reference: relative (fastest rank), individual (own best) or robust (middle of the "
    "peers); 1 is as fast",
)
RANK_SCORE: Final = Family(
    "rankwatch_rank_gpu_score",
    "gauge",
    ("job", "rank", "host", "score"),
    "the same of the 5 worst ranks",
)
RANK_LATENESS: Final = Family(
    "rankwatch_rank_lateness_seconds",
    "gauge",
    ("job", "rank", "host"),
    "time in each step for which the others wait for a rank, of the 5 latest",
)
SCORED_RANKS: Final = Family("rankwatch_scored_ranks", "gauge", ("job", "score"), "ranks that have a GPU score")
SCORING_SECONDS: Final = Family(
    "rankwatch_scoring_seconds", "gauge", ("job",), "how long computing the last scores took"
)
STRAGGLER: Final = Family(
    "rankwatch_straggler",
    "gauge",
    ("job", "rank", "host", "cause", "reason"),
    "1 for each rank that is slow by its own fault, of the 100 costliest",
)
STRAGGLERS: Final = Family("rankwatch_stragglers_total", "counter", ("job", "cause"), "stragglers found, by cause")
STRAGGLER_COST: Final = Family(
    "rankwatch_straggler_cost_gpu_seconds_total",
    "counter",
    ("job",),
    "GPU time that ranks spent waiting for stragglers",
)
JOB_VERDICT: Final = Family(
    "rankwatch_job_verdict",
    "gauge",
    ("job", "verdict"),
    "1 for the diagnosis of the time a job loses, 0 for the others; never healthy while a job hangs, recovers or "
    "is lost, or once it failed",
)
STEP_SECONDS: Final = Family(
    "rankwatch_step_seconds", "gauge", ("job",), "time of a step in the last window, median over the ranks"
)
COMMUNICATION_BANDWIDTH: Final = Family(
    "rankwatch_communication_bandwidth_bytes_per_second",
    "gauge",
    ("job", "kind", "operation", "aggregation"),
    "bus bandwidth by the kind of process group (its name without numbers) and operation",
)
GROUP_BANDWIDTH: Final = Family(
    "rankwatch_group_bandwidth_bytes_per_second",
    "gauge",
    ("job", "group", "operation"),
    "the same of the 5 process groups that are slowest beside what is usual",
)
GROUP_BANDWIDTH_RATIO: Final = Family(
    "rankwatch_group_bandwidth_ratio",
    "gauge",
    ("job", "group", "operation"),
    "over what is usual: the median of the group's peers, or its own best",
)
STEP_PART_SECONDS: Final = Family(
    "rankwatch_step_part_seconds",
    "gauge",
    ("job", "part"),
    "parts of a step's time, median over the ranks",
)
KERNEL_SOURCE_RANKS: Final = Family(
    "rankwatch_kernel_source_ranks", "gauge", ("job", "source"), "ranks by where their kernel timings come from"
)
FROM_WINDOWS: Final = (
    GPU_SCORE,
    RANK_SCORE,
    RANK_LATENESS,
    SCORED_RANKS,
    SCORING_SECONDS,
    STRAGGLER,
    STEP_SECONDS,
    COMMUNICATION_BANDWIDTH,
    GROUP_BANDWIDTH,
    GROUP_BANDWIDTH_RATIO,
    STEP_PART_SECONDS,
    KERNEL_SOURCE_RANKS,
)
"""Families that are empty until ranks have reported windows of steps."""

TELEMETRY_DROPPED: Final = Family(
    "rankwatch_telemetry_dropped_total", "counter", ("job", "reason"), "what the ranks' telemetry lost"
)
INGEST_REPORTS: Final = Family("rankwatch_ingest_reports_total", "counter", (), "rank reports accepted")
INGEST_REJECTED: Final = Family(
    "rankwatch_ingest_rejected_total", "counter", ("reason",), "items that were turned away"
)
TICK_SECONDS: Final = Family("rankwatch_tick_seconds", "gauge", (), "duration of the last evaluation of all jobs")
TICK_ERRORS: Final = Family("rankwatch_tick_errors_total", "counter", (), "evaluations of a job that failed")
STORE_ERRORS: Final = Family(
    "rankwatch_store_errors", "gauge", (), "rows the database has refused since it last worked"
)
STORE_WAITING: Final = Family("rankwatch_store_rows_waiting", "gauge", (), "rows that are not written yet")
STORE_LOST: Final = Family(
    "rankwatch_store_rows_lost_total",
    "counter",
    (),
    "rows that will never be written",
)
STORE_FENCED: Final = Family(
    "rankwatch_store_rows_fenced_total",
    "counter",
    (),
    "rows not written, since another monitor owns their job",
)

TICK_AGE: Final = Family(
    "rankwatch_tick_age_seconds",
    "gauge",
    (),
    "time since the jobs were last evaluated; from 5 s the monitor is not ready",
)
JOBS_NOT_JUDGED: Final = Family("rankwatch_jobs_not_judged", "gauge", (), "jobs whose last evaluation failed")
PUBLISH_ERRORS: Final = Family(
    "rankwatch_publish_errors_total", "counter", ("publisher",), "what could not be published elsewhere"
)
WEBHOOK_MESSAGES: Final = Family(
    "rankwatch_webhook_messages_total",
    "counter",
    ("outcome",),
    "webhook messages: delivered, given_up (refused, or too old), dropped (too many waited)",
)
WEBHOOK_WAITING: Final = Family("rankwatch_webhook_messages_waiting", "gauge", (), "webhook messages that wait")
FROM_PUBLISHERS: Final = (
    PUBLISH_ERRORS,
    WEBHOOK_MESSAGES,
    WEBHOOK_WAITING,
)
"""Families that are empty unless a publisher is configured."""
BUILD_INFO: Final = Family("rankwatch_build_info", "gauge", ("version", "python"), "1 for the version that runs")

FAMILIES: Final = (
    JOB_STATE,
    JOB_STATE_ENTERED,
    JOB_REASON,
    JOB_LAST_HEARD,
    JOB_INSTRUMENTED,
    JOB_RANKS,
    JOB_WORLD_SIZE,
    JOB_NODES,
    JOB_NODES_FAILING,
    JOB_ATTEMPT,
    JOB_STALE_REPORTS,
    JOB_ITERATION,
    JOB_RESTARTS,
    JOB_RESTARTS_LEFT,
    JOB_OBSERVE_ONLY,
    GOODPUT,
    JOB_TIME,
    JOB_LOGGED,
    JOB_LOGGED_NON_FINITE,
    INCIDENTS,
    INCIDENT_OPEN,
    INCIDENT_OPENED,
    INCIDENT_SECONDS,
    CULPRIT,
    ACTION_WITHHELD,
    *FROM_WINDOWS,
    STRAGGLERS,
    STRAGGLER_COST,
    JOB_VERDICT,
    TELEMETRY_DROPPED,
    INGEST_REPORTS,
    INGEST_REJECTED,
    TICK_SECONDS,
    TICK_AGE,
    TICK_ERRORS,
    JOBS_NOT_JUDGED,
    STORE_ERRORS,
    STORE_WAITING,
    STORE_LOST,
    STORE_FENCED,
    *FROM_PUBLISHERS,
    BUILD_INFO,
)
