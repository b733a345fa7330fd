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
ATTR_STATISTIC: Final = "rankwatch.statistic"
ATTR_KERNEL: Final = "rankwatch.kernel"
ATTR_GROUP: Final = "rankwatch.group"
POINT_TO_POINT: Final = "point_to_point"
"""The value of :data:`ATTR_GROUP` that stands for sends and receives."""
ATTR_OPERATION: Final = "rankwatch.operation"
"""A collective operation and, after a space, its process group: ``all_reduce default_pg``."""
ATTR_PART: Final = "rankwatch.part"
ATTR_SOURCE: Final = "rankwatch.source"
ATTR_SCALAR: Final = "rankwatch.scalar"
ATTR_ITERATION: Final = "dl.iteration"

STEP_SECTION: Final = "step"
"""The name of the section that :func:`rankwatch.step` opens."""
SETUP_SECTION: Final = "setup"
CHECKPOINTING_SECTION: Final = "checkpointing"
EVALUATION_SECTION: Final = "evaluation"
OPTIMIZER_SECTION: Final = "optimizer"
EVALUATION_SECTIONS: Final = (EVALUATION_SECTION, "eval", "validation")
UNEQUAL_SECTIONS: Final = (SETUP_SECTION, CHECKPOINTING_SECTION, *EVALUATION_SECTIONS)
"""Sections in which rank 0 usually does more than the others: a low score there makes no straggler. The names are those
of NVRx and Megatron; their meaning is used to learn limits and to account for time."""
DATA_SECTIONS: Final = ("data", "data_loading", "dataloader", "load_batch", "get_batch", "input")
"""Names of sections in which a rank waits for its input."""


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
    "sections finished and progress() calls since the last completed step",
)
FIRST_ITERATION: Final = Metric(
    "rankwatch.iteration.first",
    "gauge",
    "{step}",
    "the first step this process completed: where it resumed",
)
FIRST_ITERATION_AGE: Final = Metric(
    "rankwatch.iteration.first.age", "gauge", "s", "time since this process completed its first step"
)
SESSION_ENDED: Final = Metric(
    "rankwatch.session.ended", "gauge", "1", "1 in the last export of a process that shut down by itself"
)
SECTION_OPEN_DURATION: Final = Metric(
    "rankwatch.section.open.duration", "gauge", "s", "how long each section has been open"
)
SECTION_IDLE_DURATION: Final = Metric(
    "rankwatch.section.idle.duration", "gauge", "s", "time since the last section closed, while none is open"
)
SECTION_FIRST: Final = Metric(
    "rankwatch.section.first",
    "gauge",
    "1",
    "1 for each open section that this process has never finished",
)
SECTION_LONGEST: Final = Metric(
    "rankwatch.section.longest",
    "gauge",
    "s",
    "the longest stretch of a section without progress in this process, its first run left out; sent when it "
    "grows, and once a minute",
)
SECTION_FIRST_DURATION: Final = Metric(
    "rankwatch.section.first.duration",
    "gauge",
    "s",
    "the same of the first run",
)
SECTION_IDLE_LONGEST: Final = Metric(
    "rankwatch.section.idle.longest",
    "gauge",
    "s",
    "the longest time between two sections outside all others",
)
PROGRESS_AGE: Final = Metric(
    "rankwatch.progress.age",
    "gauge",
    "s",
    "time since a section was entered or left, a step completed, progress() called",
)
SECTION_DURATION: Final = Metric(
    "rankwatch.section.duration", "histogram", "s", "durations of the sections finished since the last export"
)
TELEMETRY_DROPPED: Final = Metric(
    "rankwatch.telemetry.dropped", "counter", "{item}", "what the telemetry itself lost, by reason"
)

SCALAR: Final = Metric(
    "rankwatch.training.scalar",
    "gauge",
    "1",
    "a value that the script logged, by name: the mean since the last report; sent by rank 0 and the last rank",
)
SCALAR_NON_FINITE: Final = Metric(
    "rankwatch.training.scalar.non_finite",
    "counter",
    "{value}",
    "logged values that were NaN or infinite, by name",
)
SCALAR_STEP: Final = Metric(
    "rankwatch.training.scalar.step", "gauge", "{step}", "the last step that was given with logged values"
)

# Windows: what straggler detection judges ---------------------------------------------------------------------------
WINDOW_ITERATION: Final = Metric(
    "rankwatch.window.iteration",
    "gauge",
    "{step}",
    "the step that closed a window of steps, the same on all ranks",
)
WINDOW_STEPS: Final = Metric("rankwatch.window.steps", "gauge", "{step}", "steps completed within the window")
WINDOW_SECTION_DURATION: Final = Metric(
    "rankwatch.window.section.duration",
    "gauge",
    "s",
    "a section's runs within the window: median, tail (mean of the slower half), max, mean",
)
WINDOW_SECTION_CALLS: Final = Metric(
    "rankwatch.window.section.calls", "gauge", "{call}", "how often a section was finished within the window"
)
STEP_PART: Final = Metric(
    "rankwatch.step.part",
    "gauge",
    "s",
    "parts of the step that closed the window: data, host, compute, communication",
)
COLLECTIVE_DURATION: Final = Metric(
    "rankwatch.collective.duration",
    "gauge",
    "s",
    "time in the collectives of a process group in that step: busy (their union), exposed (not covered by "
    "computation), shortest (of one)",
)
COLLECTIVE_CALLS: Final = Metric(
    "rankwatch.collective.calls", "gauge", "{call}", "collectives of the group in that step"
)
OPERATION_DURATION: Final = Metric(
    "rankwatch.collective.operation.duration",
    "gauge",
    "s",
    "the same of one operation: total, shortest (of the largest ones)",
)
OPERATION_SIZE: Final = Metric(
    "rankwatch.collective.operation.size",
    "gauge",
    "By",
    "what they moved, as NCCL's tests count it: bytes (all together), largest (of one), bus (times the factor of "
    "the bus bandwidth); 0: not known",
)
OPERATION_CALLS: Final = Metric(
    "rankwatch.collective.operation.calls", "gauge", "{call}", "collectives of one operation in that step"
)
CPU_TIME: Final = Metric(
    "rankwatch.cpu.time",
    "gauge",
    "s",
    "the training thread's time for each step: used (on a CPU), waited (ready to run, without a CPU)",
)
KERNEL_DURATION: Final = Metric(
    "rankwatch.kernel.duration",
    "gauge",
    "s",
    "one kernel (on the CPU: operator) over the last report: min, median, tail, max, mean, stddev",
)
KERNEL_CALLS: Final = Metric("rankwatch.kernel.calls", "gauge", "{call}", "calls of a kernel in the same report")
KERNEL_SOURCE: Final = Metric(
    "rankwatch.kernel.source",
    "gauge",
    "1",
    "1 for the source of kernel timings in use (cupti, kineto-cuda, kineto-cpu, none), and why it is not another",
)

# Devices (OpenTelemetry's hw.* names) -------------------------------------------------------------------------------
GPU_UTILIZATION: Final = Metric("hw.gpu.utilization", "gauge", "1", "part of the time in which a kernel ran")
GPU_MEMORY_USAGE: Final = Metric("hw.gpu.memory.usage", "gauge", "By", "device memory in use")
GPU_MEMORY_LIMIT: Final = Metric("hw.gpu.memory.limit", "gauge", "By", "device memory there is")
GPU_TEMPERATURE: Final = Metric("hw.gpu.temperature", "gauge", "Cel", "temperature of the device")
GPU_POWER: Final = Metric("hw.gpu.power", "gauge", "W", "power drawn")
GPU_POWER_LIMIT: Final = Metric("hw.gpu.power.limit", "gauge", "W", "power limit in force")
GPU_CLOCK: Final = Metric("hw.gpu.clock.frequency", "gauge", "Hz", "clock of the streaming multiprocessors now")
GPU_CLOCK_LIMIT: Final = Metric("hw.gpu.clock.limit", "gauge", "Hz", "the highest clock the device can have")
GPU_THROTTLED: Final = Metric("hw.gpu.throttled", "gauge", "1", "1 for each reason for which the clocks are held down")
GPU_ERRORS: Final = Metric(
    "hw.errors", "gauge", "{error}", "errors the device has counted, by reason: ecc_uncorrected, ecc_corrected, xid"
)

METRICS: Final = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
"""All of them, in the order above: a new one is one row there."""
DEVICE_METRICS: Final = METRICS[METRICS.index(GPU_UTILIZATION) :]

OTLP_METRICS_PATH: Final = "/v1/metrics"
OTLP_TRACES_PATH: Final = "/v1/traces"
API_PREFIX: Final = "/api/v1"
JOB_HEADER: Final = "rankwatch-job"
"""Header of all that ranks and launchers send: the job's id, percent-encoded as in the path of an API call. Where
several monitors share the work, a proxy sends all of a job to one of them by it (docs/many-monitors.md)."""
