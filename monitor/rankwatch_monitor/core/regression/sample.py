"""One judged window of a job as statistics over its ranks: small, whatever the number of ranks, and easy to merge.

Shapes: R ranks, P parts of a step (in the order of :data:`PARTS`), S sections, K kernels. NaN says "not told". All
durations are seconds; what is kept has four digits, which is more than any of it is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from rankwatch.contract.enums import Part
from rankwatch.contract.policy import Policy
from rankwatch.contract.semconv import STEP_SECTION
from rankwatch_monitor.core.ranks import Floats

PARTS: Final = tuple(Part)
OWN_PARTS: Final = (Part.DATA, Part.HOST, Part.COMPUTE)
"""A rank's own work: what the others wait for."""
SECTIONS: Final = 32
KERNELS: Final = 32
COLLECTIVES: Final = 16
SLOWEST: Final = 5
CHANGES: Final = 16
REASONS: Final = 16
"""How many of each a sample holds at most."""
NAME: Final = 200
"""Characters of a name that are kept."""
SURVEYED: Final = 4096
"""Medians over more ranks than this are taken over so many of them: the middle of 4,096 is known well enough."""

V = TypeVar("V")


class SectionSample(NamedTuple):
    """A section over the ranks: the median and the largest of the ranks' medians, in seconds a run."""

    median: float
    max: float
    worst: int
    """The rank with the largest."""
    calls: float = 1.0
    """Runs a step."""


class CollectiveSample(NamedTuple):
    """The collectives of one process group, in seconds of the step: median over ranks of their union, and of one."""

    busy: float
    shortest: float


class DeviceSample(NamedTuple):
    """Clocks in hertz, the highest temperature in degrees Celsius, and how many ranks are throttled, by reason."""

    clock: float | None = None
    clock_min: float | None = None
    temperature: float | None = None
    throttled: Mapping[str, int] = {}


class SlowRank(NamedTuple):
    """A rank with more own work than most: for its excess the others wait."""

    rank: int
    host: str
    work: float
    """Its own work: the step without communication."""
    late: float
    """The same beyond the median rank's."""
    parts: tuple[float, ...] = ()
    """Of its own work, in the order of :data:`OWN_PARTS`."""


class PolicyChange(NamedTuple):
    """A value of the policy that was changed; both as JSON types."""

    name: str
    old: Any
    new: Any


class Waited(NamedTuple):
    """Seconds of a step in which training threads were ready to run but had no CPU: median and largest over ranks."""

    median: float
    max: float


class Sample(NamedTuple):
    """One judged window, or several merged into one."""

    at: float
    """Unix seconds of its end."""
    seconds: float
    """How long it lasted: its weight where samples are merged."""
    attempt: int
    iteration: int
    """The step that closed it; -1: none was told."""
    ranks: int
    """Of the world, those that told nothing in this window included."""
    hosts: tuple[str, ...]
    """Sorted."""
    step: float
    step_max: float
    """Seconds of a step: the median rank's and the largest."""
    parts: Mapping[str, float] = {}
    """Median over ranks by part; empty: no step was profiled."""
    sections: Mapping[str, SectionSample] = {}
    kernels: Mapping[str, float] = {}
    """Seconds of a step, median over ranks; empty: there was no report of kernels in this window."""
    collectives: Mapping[str, CollectiveSample] = {}
    device: DeviceSample | None = None
    waited: Waited | None = None
    changes: tuple[PolicyChange, ...] = ()
    """Of the policy, since the sample before."""
    slowest: tuple[SlowRank, ...] = ()
    """The slowest first."""


def sample_of(
    *,
    at: float,
    seconds: float,
    attempt: int,
    iteration: int | None,
    hosts_R: Sequence[str],
    step_R: Floats,
    parts_RP: Floats | None = None,
    sections: Sequence[str] = (),
    section_RS: Floats | None = None,
    calls_RS: Floats | None = None,
    kernels: Sequence[str] = (),
    kernel_RK: Floats | None = None,
    collectives: Mapping[str, tuple[float, float]] | None = None,
    clock_R: Floats | None = None,
    temperature_R: Floats | None = None,
    throttled: Mapping[str, int] | None = None,
    waited_R: Floats | None = None,
    changes: Iterable[PolicyChange] = (),
) -> Sample | None:
    """One window of a job from its plain arrays; None when no rank told how long a step takes.

    Args:
        at: unix seconds of the window's end.
        seconds: how long the window lasted.
        attempt: the attempt it belongs to.
        iteration: the step that closed it, None when the job counts none.
        hosts_R: the host of each rank of the world, whether it told anything or not; empty where unknown.
        step_R: seconds of a step.
        parts_RP: seconds of the profiled step by part, in the order of :data:`PARTS`.
        sections: names of the sections.
        section_RS: median seconds of a run of each section.
        calls_RS: runs a step of each section; without it one.
        kernels: names of the kernels.
        kernel_RK: seconds a step of each kernel; only in the window in which a report of them came.
        collectives: by process group the median of the busy seconds of the step and of the shortest collective.
        clock_R: hertz of the multiprocessors.
        temperature_R: degrees Celsius.
        throttled: how many ranks are throttled, by reason.
        waited_R: seconds a step without a CPU.
        changes: of the policy since the window before.
    """
    told_R = np.isfinite(step_R) & (step_R > 0)
    if not told_R.any():
        return None
    shown = _survey(len(step_R), told_R)
    return Sample(
        at=round(at, 1),
        seconds=round(max(seconds, 0.1), 1),
        attempt=attempt,
        iteration=-1 if iteration is None else int(iteration),
        ranks=max(len(hosts_R), len(step_R)),
        hosts=tuple(sorted(set(hosts_R) - {""})),
        step=short(float(_middle(np.where(told_R, step_R, np.nan)[shown]))),
        step_max=short(float(np.max(step_R[told_R]))),
        parts=_parts(parts_RP, shown),
        sections=_sections(sections, section_RS, calls_RS, shown),
        kernels=_kernels(kernels, kernel_RK, shown),
        collectives=_collectives(collectives or {}),
        device=_device(clock_R, temperature_R, throttled or {}, shown),
        waited=_waited(waited_R, shown),
        changes=tuple(changes)[:CHANGES],
        slowest=_slowest(parts_RP, hosts_R),
    )


def policy_changes(old: Policy, new: Policy) -> tuple[PolicyChange, ...]:
    """What differs between two policies."""
    before, after = old.to_json(), new.to_json()
    return tuple(PolicyChange(name, before[name], after[name]) for name in after if before[name] != after[name])


def short(value: float) -> float:
    """A number with four digits: half the text of a history."""
    return float(f"{value:.4g}")


def largest(table: Mapping[str, V], most: int, size: Callable[[V], float]) -> dict[str, V]:
    """The entries of a table that weigh most, the heaviest first."""
    chosen = sorted(table, key=lambda name: -size(table[name]))[:most]
    return {name: table[name] for name in chosen}


def _survey(ranks: int, told_R: np.ndarray[Any, np.dtype[np.bool_]]) -> Any:
    """The ranks whose median is taken: all that told, or so many of them. The choice never changes by itself."""
    if ranks <= SURVEYED:
        return told_R
    # Every n-th rank would always be the same place of a node or of the layout.
    chosen = np.random.default_rng(ranks).choice(ranks, SURVEYED, replace=False)
    return chosen if told_R[chosen].any() else told_R


def _middle(values: Floats) -> Floats:
    """The median over the first axis, NaN left out; NaN where there is nothing. Never warns."""
    ordered = np.sort(values, axis=0)  # NaN goes last
    count = np.sum(np.isfinite(values), axis=0)
    low, high = np.maximum(count - 1, 0) // 2, np.maximum(count, 1) // 2
    high = np.minimum(high, len(values) - 1)
    if values.ndim == 1:
        middle: Floats = (ordered[low] + ordered[high]) / 2
    else:
        column = np.arange(values.shape[1])
        middle = (ordered[low, column] + ordered[high, column]) / 2
    return middle


def _parts(parts_RP: Floats | None, shown: Any) -> dict[str, float]:
    if parts_RP is None or not parts_RP.size:
        return {}
    middle_P = _middle(parts_RP[shown])
    return {str(part): short(float(middle_P[p])) for p, part in enumerate(PARTS) if np.isfinite(middle_P[p])}


def _sections(
    names: Sequence[str], section_RS: Floats | None, calls_RS: Floats | None, shown: Any
) -> dict[str, SectionSample]:
    if section_RS is None or not len(names):
        return {}
    middle_S = _middle(section_RS[shown])
    calls_S = np.ones(len(names)) if calls_RS is None else _middle(calls_RS[shown])
    worst_S = np.argmax(np.where(np.isfinite(section_RS), section_RS, -np.inf), axis=0)
    table = {
        name[:NAME]: SectionSample(
            short(float(middle_S[s])),
            short(float(section_RS[worst_S[s], s])),
            int(worst_S[s]),
            short(float(calls_S[s])) if np.isfinite(calls_S[s]) else 1.0,
        )
        for s, name in enumerate(names)
        if np.isfinite(middle_S[s]) and name != STEP_SECTION  # the step itself explains nothing
    }
    return largest(table, SECTIONS, lambda section: section.median * section.calls)


def _kernels(names: Sequence[str], kernel_RK: Floats | None, shown: Any) -> dict[str, float]:
    if kernel_RK is None or not len(names):
        return {}
    middle_K = _middle(kernel_RK[shown])
    table = {name[:NAME]: short(float(middle_K[k])) for k, name in enumerate(names) if np.isfinite(middle_K[k])}
    return largest(table, KERNELS, lambda spent: spent)


def _collectives(told: Mapping[str, tuple[float, float]]) -> dict[str, CollectiveSample]:
    table = {
        name[:NAME]: CollectiveSample(short(busy), short(shortest))
        for name, (busy, shortest) in told.items()
        if np.isfinite(busy) and np.isfinite(shortest)
    }
    return largest(table, COLLECTIVES, lambda collective: collective.busy)


def _device(
    clock_R: Floats | None, temperature_R: Floats | None, throttled: Mapping[str, int], shown: Any
) -> DeviceSample | None:
    clock = clock_min = temperature = None
    if clock_R is not None and np.isfinite(clock_R).any():
        clock, clock_min = short(float(_middle(clock_R[shown]))), short(float(np.nanmin(clock_R)))
        clock = clock if np.isfinite(clock) else clock_min
    if temperature_R is not None and np.isfinite(temperature_R).any():
        temperature = short(float(np.nanmax(temperature_R)))
    held = largest({reason[:NAME]: count for reason, count in throttled.items() if count > 0}, REASONS, float)
    told = clock is not None or temperature is not None or held
    return DeviceSample(clock, clock_min, temperature, held) if told else None


def _waited(waited_R: Floats | None, shown: Any) -> Waited | None:
    if waited_R is None or not np.isfinite(waited_R[shown]).any():
        return None
    return Waited(short(float(_middle(waited_R[shown]))), short(float(np.nanmax(waited_R))))


def _slowest(parts_RP: Floats | None, hosts_R: Sequence[str]) -> tuple[SlowRank, ...]:
    if parts_RP is None or not parts_RP.size:
        return ()
    own_RP = parts_RP[:, [PARTS.index(part) for part in OWN_PARTS]]
    work_R = own_RP.sum(axis=1)
    known = np.flatnonzero(np.isfinite(work_R))
    if not len(known):
        return ()
    usual = float(np.median(work_R[known]))
    first = min(SLOWEST, len(known))
    top = known[np.argpartition(-work_R[known], first - 1)[:first]]
    return tuple(
        SlowRank(
            int(rank),
            hosts_R[rank][:NAME] if rank < len(hosts_R) else "",
            short(float(work_R[rank])),
            short(float(work_R[rank]) - usual),
            tuple(short(float(own)) for own in own_RP[rank]),
        )
        for rank in top[np.argsort(-work_R[top], kind="stable")]
    )
