"""Resource attributes, metric names and units of the telemetry that a rank sends over OTLP.

Durations are measured on the rank's monotonic clock and sent as *ages*, so that no clock skew between hosts can make a
hang or hide one. ``dl.*`` are the names that NVIDIA's NeMo Lens emits; its ``nv.dl.*`` spelling is accepted on ingest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

# Resource attributes ------------------------------------------------------------------------------------------------
SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
HOST_NAME: Final = "host.name"
PROCESS_PID: Final = "process.pid"
PROCESS_START_TIME: Final = "process.creation.time"
JOB_ID: Final = "rankwatch.job.id"
ATTEMPT: Final = "rankwatch.attempt"
RANK: Final = "dl.rank"
LOCAL_RANK: Final = "dl.local_rank"
WORLD_SIZE: Final = "dl.world_size"
HW_ID: Final = "hw.id"
HW_NAME: Final = "hw.name"

PARALLEL_DIMENSIONS: Final = ("data_parallel", "tensor_parallel", "pipeline_parallel", "expert_parallel")
"""``dl.<dimension>.rank`` and ``dl.<dimension>.size`` are resource attributes where they are known."""

SYNONYM_PREFIX: Final = ("nv.dl.", "dl.")
"""An attribute that starts with the first is read as if it started with the second."""

# Point and span attributes ------------------------------------------------------------------------------------------
ATTR_SECTION: Final = "rankwatch.section"
ATTR_REASON: Final = "rankwatch.reason"
ATTR_ITERATION: Final = "dl.iteration"

STEP_SECTION: Final = "step"
"""The name of the section that :func:`rankwatch.step` opens."""
SETUP_SECTION: Final = "setup"
CHECKPOINTING_SECTION: Final = "checkpointing"
EVALUATION_SECTIONS: Final = ("evaluation", "eval", "validation")
"""Names that users of NVRx and Megatron know; what they mean is used to learn limits and to account for time."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the contract: its OpenTelemetry name, instrument kind, unit (UCUM) and meaning."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    meaning: str


HEARTBEATS: Final = Metric("rankwatch.heartbeats", "counter", "{heartbeat}", "heartbeats since the process started")
HEARTBEAT_AGE: Final = Metric("rankwatch.heartbeat.age", "gauge", "s", "time since the last heartbeat")
ITERATION: Final = Metric("rankwatch.iteration", "gauge", "{step}", "the last training step that was completed")
PROGRESS: Final = Metric(
    "rankwatch.progress",
    "gauge",
    "{event}",
    "progress within the current step: sections finished and progress() calls since the last completed step",
)
FIRST_ITERATION: Final = Metric(
    "rankwatch.iteration.first", "gauge", "{step}", "the first step this process completed: where it resumed"
)
FIRST_ITERATION_AGE: Final = Metric(
    "rankwatch.iteration.first.age", "gauge", "s", "time since this process completed its first step"
)
SESSION_ENDED: Final = Metric(
    "rankwatch.session.ended", "gauge", "1", "1 in the last export of a process that shut down by itself"
)
SECTION_OPEN_DURATION: Final = Metric(
    "rankwatch.section.open.duration", "gauge", "s", "one point for each section open now: how long it has been open"
)
SECTION_IDLE_DURATION: Final = Metric(
    "rankwatch.section.idle.duration", "gauge", "s", "time since the last section closed, only while none is open"
)
SECTION_FIRST: Final = Metric(
    "rankwatch.section.first",
    "gauge",
    "1",
    "1 for each section open now that this process has never finished before: it may compile, or load",
)
SECTION_LONGEST: Final = Metric(
    "rankwatch.section.longest",
    "gauge",
    "s",
    "the longest a section has taken in this process, its first run left out; sent when it grows, and once a minute",
)
SECTION_FIRST_DURATION: Final = Metric(
    "rankwatch.section.first.duration",
    "gauge",
    "s",
    "how long the first run of a section took in this process; sent like the longest",
)
SECTION_IDLE_LONGEST: Final = Metric(
    "rankwatch.section.idle.longest",
    "gauge",
    "s",
    "the longest time between two sections outside all others in this process; sent like the longest",
)
PROGRESS_AGE: Final = Metric(
    "rankwatch.progress.age",
    "gauge",
    "s",
    "time since the last sign of progress: a section entered or left, a step completed, progress() called",
)
SECTION_DURATION: Final = Metric(
    "rankwatch.section.duration", "histogram", "s", "durations of the sections finished since the last export"
)
TELEMETRY_DROPPED: Final = Metric(
    "rankwatch.telemetry.dropped", "counter", "{item}", "what the telemetry itself lost, by reason"
)

METRICS: Final = (
    HEARTBEATS,
    HEARTBEAT_AGE,
    ITERATION,
    PROGRESS,
    FIRST_ITERATION,
    FIRST_ITERATION_AGE,
    SESSION_ENDED,
    SECTION_OPEN_DURATION,
    SECTION_IDLE_DURATION,
    SECTION_FIRST,
    SECTION_LONGEST,
    SECTION_FIRST_DURATION,
    SECTION_IDLE_LONGEST,
    PROGRESS_AGE,
    SECTION_DURATION,
    TELEMETRY_DROPPED,
)

OTLP_METRICS_PATH: Final = "/v1/metrics"
OTLP_TRACES_PATH: Final = "/v1/traces"
API_PREFIX: Final = "/api/v1"
