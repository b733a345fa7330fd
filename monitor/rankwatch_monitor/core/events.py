"""The inputs of the core: each is one of these immutable events and is applied with a ``now``.

Ages are seconds before the event arrived. ``None`` means "not reported", which differs from zero or empty: a batch of
telemetry may be split on its way, and fields that a message lacks keep their value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rankwatch.contract.enums import Action
from rankwatch.contract.messages import DirectiveAck, Evidence, NodeObservation, NodeRegistration, ProcessEvent
from rankwatch.contract.policy import Policy
from rankwatch.contract.statistics import CollectiveWindow, KernelStatistics, OperationWindow, SectionWindow


class SectionStatistics(NamedTuple):
    """Finished sections of one name since the last report: how many, and seconds in sum, least and most."""

    count: int  # type: ignore[assignment]  # the standard term; tuple.count is not used here
    sum: float
    min: float
    max: float


class WindowReport(NamedTuple):
    """A rank's report of one window of steps, sent once."""

    iteration: int | None = None
    """The step that closed it, the same on all ranks; None: the job counts no steps, and windows follow the clock."""
    steps: int = 0
    sections: Mapping[str, SectionWindow] = {}
    parts: Mapping[str, float] = {}
    """Seconds of the step that closed it, by :class:`~rankwatch.contract.enums.Part`; empty: it was not profiled."""
    collectives: Mapping[str, CollectiveWindow] = {}
    """Of the same step, by process group."""
    cpu_waited: float | None = None
    """Seconds a step that the training thread was ready to run, but had no CPU."""
    compared: bool = False
    """How long ``step`` took is this rank's own measurement, and all that is known: ranks are compared by it."""
    operations: Mapping[str, OperationWindow] = {}
    """Of the same step as ``parts``, by :func:`rankwatch.contract.collectives.series`."""


USUAL_THROTTLING: Final = frozenset(
    {
        *("power_cap", "sw_power_cap", "idle", "gpu_idle", "none", "sync_boost", "display_clock"),
        *("display_clock_setting", "application_clocks", "applications_clocks_setting"),
    }
)
"""Throttle reasons of a device that works as it should: under full load, without work, or as it was configured."""
_THROTTLING: Final = {
    "hw_thermal": "thermal slowdown by the hardware",
    "sw_thermal": "thermal slowdown by the driver",
    "hw_slowdown": "slowdown by the hardware",
    "hw_power_brake": "power brake by the hardware",
}
"""Words for throttle reasons; some emitters end their names with ``_slowdown``."""


def throttle_words(reason: str) -> str:
    """``thermal slowdown by the hardware`` for ``hw_thermal`` and ``hw_thermal_slowdown``."""
    known = _THROTTLING.get(reason) or _THROTTLING.get(reason.removesuffix("_slowdown"))
    return known or reason.replace("_", " ")


class DeviceReading(NamedTuple):
    """NVML's reading of a rank's device; None: not reported."""

    utilization: float | None = None
    """0 to 1."""
    memory_used: float | None = None
    memory_total: float | None = None
    """Bytes."""
    temperature: float | None = None
    """Degrees Celsius."""
    power: float | None = None
    power_limit: float | None = None
    """Watts."""
    clock: float | None = None
    clock_limit: float | None = None
    """Hertz, of the streaming multiprocessors."""
    throttled: tuple[str, ...] = ()
    """Reasons for which the clocks are held down now."""
    errors: Mapping[str, int] = {}
    """By reason: ecc_uncorrected, ecc_corrected, xid."""

    @property
    def slowed_by(self) -> tuple[str, ...]:
        """The throttle reasons for which a device is slower than its peers, in the words of its emitter."""
        return tuple(each for each in self.throttled if each not in USUAL_THROTTLING)


class RankIdentity(NamedTuple):
    """The process that sent telemetry, from its resource attributes."""

    job_id: str
    rank: int
    job_name: str = ""
    local_rank: int = -1
    world_size: int = 0
    attempt: int = 0
    host: str = ""
    pid: int = 0
    instance: str = ""
    """``service.instance.id``: distinguishes processes that claim the same rank."""
    started_at: float = 0.0
    """Unix time of the process's start, 0: not reported. Only compared between processes of the same rank."""
    device: str = ""
    data_parallel: int = -1
    """Coordinates in the parallel layout; -1: not reported."""
    tensor_parallel: int = -1
    pipeline_parallel: int = -1
    expert_parallel: int = -1


class RankReport(NamedTuple):
    """A rank's report of itself in one export."""

    identity: RankIdentity
    beats: int | None = None
    heartbeat_age: float | None = None
    iteration: int | None = None
    progress: int | None = None
    """Progress within the current step: sections finished and ``progress()`` calls since the last completed step."""
    open_sections: Mapping[str, float] | None = None
    """Seconds each open section has been open; empty: it uses sections and none is open; None: not reported."""
    idle: float | None = None
    finished: Mapping[str, SectionStatistics] = {}
    dropped: Mapping[str, int] = {}
    first_iteration: int | None = None
    """The first step this process completed: where it resumed."""
    first_iteration_age: float | None = None
    quiet: float | None = None
    """Seconds since the last sign of progress: a section entered or left, a step completed."""
    first_time: tuple[str, ...] = ()
    """Sections open now that this process has never finished before."""
    longest: Mapping[str, float] = {}
    """Longest run of each section in this process without its first; only sections in this report."""
    first_durations: Mapping[str, float] = {}
    """Duration of the first run of each section in this process; only sections in this report."""
    idle_longest: float | None = None
    window: WindowReport | None = None
    kernels: Mapping[str, KernelStatistics] | None = None
    """By name and launch shape, over the last report interval; None: not reported."""
    kernel_source: str | None = None
    """Where kernel timings come from: ``cupti``, ``kineto-cuda``, ``kineto-cpu`` or ``none``."""
    kernel_source_reason: str = ""
    """Why it is not another."""
    device: DeviceReading | None = None
    logged: Mapping[str, float] = {}
    """Means of values that the training script logged since the last report, by name."""
    logged_non_finite: Mapping[str, int] = {}
    """How many of them were NaN or infinite since the process started."""
    logged_step: int | None = None
    ended: bool = False
    """The process shut its telemetry down: silence from now on is expected."""
    foreign: bool = False
    """From another emitter, which may export once a minute; Rankwatch's ranks do every few seconds."""


class Acknowledged(NamedTuple):
    """A launcher answered a directive."""

    directive: int
    ack: DirectiveAck


class Order(NamedTuple):
    """An action was ordered by request."""

    action: Action
    reason: str
    nodes: tuple[str, ...] = ()
    """Of ``restart_excluding_node``: names of the launchers to exclude."""


class PolicyChanged(NamedTuple):
    """The policy was replaced by another, validated one."""

    policy: Policy


JobEvent = (
    RankReport | NodeRegistration | NodeObservation | ProcessEvent | Acknowledged | Evidence | Order | PolicyChanged
)
