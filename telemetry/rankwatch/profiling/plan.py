"""The profiling plan of a rank: settings of the process, and those pushed by the launcher, validated.

Values that the launcher writes into the slots (``settings["profiling"]``) take precedence over the process's own
settings, one by one, also while it runs. Invalid values are logged and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rankwatch.contract.enums import KernelSource
from rankwatch.contract.policy import Policy, Ranks, parse_ranks
from rankwatch.settings import Settings

PUSHED_KEY: Final = "profiling"
"""The key in the slots' settings."""
MAX_STRIDE: Final = 2**20
MAX_TRACE_ID: Final = 64

_POLICY_NAMES: Final = {
    "source": "kernel_timings",
    "interval": "profiling_interval",
    "ranks": "profiled_ranks",
    "report_interval": "report_interval",
}


class TraceRequest(NamedTuple):
    """A request for a trace of the next sampled step of a rank."""

    rank: int
    id: str


@dataclass(frozen=True, slots=True)
class ProfilingPlan:
    """What is to be profiled in this rank."""

    source: KernelSource = KernelSource.AUTO
    interval: int = 0
    """Steps in a window; 0: chosen by the rank."""
    ranks: Ranks = parse_ranks("all")  # noqa: RUF009 - it is frozen, and the same for all
    report_interval: float = 300.0
    stride: int = 0
    """Steps in a window, set by the launcher for all its ranks; 0: not set."""
    trace: TraceRequest | None = None

    @property
    def configured_stride(self) -> int:
        """Steps in a window set by the launcher or the policy; 0: neither."""
        return self.stride or self.interval


def of_settings(settings: Settings) -> ProfilingPlan:
    """The plan of this process's own settings."""
    return ProfilingPlan(
        KernelSource(settings.kernel_timings),
        settings.profiling_interval,
        parse_ranks(settings.profiled_ranks),
        settings.report_interval,
    )


def with_pushed(own: ProfilingPlan, pushed: Mapping[str, Any]) -> tuple[ProfilingPlan, list[str]]:
    """Return ``own`` with the launcher's values in place, and a message for each invalid one."""
    given = pushed.get(PUSHED_KEY)
    if given is None:
        return own, []
    if not isinstance(given, Mapping):
        return own, [f"the setting {PUSHED_KEY!r} must map names to values, not {given!r}; it is ignored"]
    problems: list[str] = []
    policy = Policy(
        kernel_timings=own.source,
        profiling_interval=own.interval,
        profiled_ranks=str(own.ranks),
        report_interval=own.report_interval,
    )
    for key, name in _POLICY_NAMES.items():
        if given.get(key) is not None:
            try:
                policy = policy.changed({name: given[key]})
            except ValueError as error:
                problems.append(f"{error}; it is ignored")
    stride = given.get("stride") or 0
    if isinstance(stride, bool) or not isinstance(stride, int) or not 0 <= stride <= MAX_STRIDE:
        problems.append(f"stride must be a whole number from 0 to {MAX_STRIDE}, not {stride!r}; it is ignored")
        stride = 0
    trace, problem = _trace(given.get("trace"))
    plan = ProfilingPlan(
        policy.kernel_timings,
        policy.profiling_interval,
        parse_ranks(policy.profiled_ranks),
        policy.report_interval,
        stride,
        trace,
    )
    return plan, problems + problem


def _trace(given: Any) -> tuple[TraceRequest | None, list[str]]:
    if given is None:
        return None, []
    rank, name = (given.get("rank"), given.get("id")) if isinstance(given, Mapping) else (None, None)
    if isinstance(rank, bool) or not isinstance(rank, int) or not isinstance(name, str) or not name:
        return None, [f'a trace request is written {{"rank": 3, "id": "..."}}, not {given!r}; it is ignored']
    return TraceRequest(rank, name[:MAX_TRACE_ID]), []
