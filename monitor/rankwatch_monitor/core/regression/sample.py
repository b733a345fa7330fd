"""Samples: one evaluated window as statistics over its ranks, bounded whatever the number of ranks, and mergeable.

Shapes: R ranks, P parts of a step (in the order of :data:`PARTS`), S sections, K kernels. NaN: not reported. Durations
are seconds, kept with four digits, which exceeds their accuracy.
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
"""Parts of a rank's own work."""
SECTIONS: Final = 32
KERNELS: Final = 32
COLLECTIVES: Final = 16
SLOWEST: Final = 5
CHANGES: Final = 16
REASONS: Final = 16
"""Entries of each table of a sample at most."""
NAME: Final = 200
"""Characters kept of a name."""
SURVEYED: Final = 4096
"""Ranks over which medians are taken, at random when there are more: the median of 4,096 is exact enough."""

V = TypeVar("V")


class SectionSample(NamedTuple):
    """A section over the ranks: median and maximum of the ranks' medians, in seconds a run."""

    median: float
    max: float
    worst: int
    """The rank with the maximum."""
    calls: float = 1.0
    """Runs a step."""


class CollectiveSample(NamedTuple):
    """Collectives of a process group, in seconds of the step, medians over ranks: exposed time, and shortest one."""

    busy: float
    shortest: float
    bandwidth: float = 0.0
    """Bus bandwidth of the operation that takes longest, in bytes a second; 0: unknown."""


class DeviceSample(NamedTuple):
    """Clocks in hertz, temperatures in degrees Celsius, and throttled ranks by reason."""

    clock: float | None = None
    clock_min: float | None = None
    temperature: float | None = None
    """The highest."""
    throttled: Mapping[str, int] = {}
    clock_rank: int | None = None
    """The rank with the lowest clock."""
    temperature_rank: int | None = None
    """The rank with the highest temperature."""
    temperature_median: float | None = None


class SlowRank(NamedTuple):
    """A rank with more own work than the median rank; the others wait for its excess."""

    rank: int
    host: str
    work: float
    """Own work: the step without communication."""
    late: float
    """Own work beyond the median rank's."""
    parts: tuple[float, ...] = ()
    """Of its own work, in the order of :data:`OWN_PARTS`."""


class PolicyChange(NamedTuple):
    """A changed value of the policy, as JSON types."""

    name: str
    old: Any
    new: Any


class Waited(NamedTuple):
    """Seconds of a step in which training threads were ready to run but had no CPU: median and largest over ranks."""

    median: float
    max: float


class Sample(NamedTuple):
    """One evaluated window, or several merged."""

    at: float
    """Unix seconds of the end."""
    seconds: float
    """Duration; the weight when samples are merged."""
    attempt: int
    iteration: int
    """The step that closed it; -1: unknown."""
    ranks: int
    """World size, ranks that reported nothing included."""
    hosts: tuple[str, ...]
    """Sorted."""
    step: float
    step_max: float
    """Seconds of a step: the median rank's and the largest."""
    parts: Mapping[str, float] = {}
    """Median over ranks, by part; empty: no step was profiled."""
    sections: Mapping[str, SectionSample] = {}
    kernels: Mapping[str, float] = {}
    """Seconds of a step, median over ranks; empty: no kernels were reported in this window."""
    collectives: Mapping[str, CollectiveSample] = {}
    device: DeviceSample | None = None
    waited: Waited | None = None
    changes: tuple[PolicyChange, ...] = ()
    """Of the policy, since the sample before."""
    slowest: tuple[SlowRank, ...] = ()
    """The slowest first."""

    @property
    def waiting(self) -> float | None:
        """Seconds of the communication in which the median rank waits for the slowest; None: not measured."""
        communication = self.parts.get(Part.COMMUNICATION)
        if communication is None or not self.slowest:
            return None
        return min(communication, max(0.0, self.slowest[0].late))


class Measured(NamedTuple):
    """What one window has measured, before it is made into statistics."""

    at: float
    """Unix seconds of the window's end."""
    seconds: float
    attempt: int
    iteration: int | None
    """The step that closed it; None: the job counts no steps."""
    hosts_R: Sequence[str]
    """The host of each rank of the world; empty where unknown."""
    step_R: Floats
    parts_RP: Floats | None = None
    """Of the profiled step, in the order of :data:`PARTS`."""
    sections: Sequence[str] = ()
    section_RS: Floats | None = None
    """Median of the runs of each section."""
    calls_RS: Floats | None = None
    """Runs a step of each section; without it one."""
    kernels: Sequence[str] = ()
    kernel_RK: Floats | None = None
    """Seconds a step; only in a window in which kernels were reported."""
    collectives: Mapping[str, tuple[float, ...]] = {}
    """The fields of a :class:`CollectiveSample`, by process group."""
    clock_R: Floats | None = None
    """Hertz of the multiprocessors."""
    temperature_R: Floats | None = None
    """Degrees Celsius."""
    throttled: Mapping[str, int] = {}
    """Throttled ranks by reason."""
    waited_R: Floats | None = None
    """Seconds a step without a CPU."""
    changes: Iterable[PolicyChange] = ()
    """Of the policy since the window before."""


def sample_of(window: Measured) -> Sample | None:
    """Make the sample of one window; None when no rank reported how long a step takes."""
    step_R, hosts_R = window.step_R, window.hosts_R
    reported_R = np.isfinite(step_R) & (step_R > 0)
    if not reported_R.any():
        return None
    chosen_R = _survey(len(step_R), reported_R)
    return Sample(
        at=round(window.at, 1),
        seconds=round(max(window.seconds, 0.1), 1),
        attempt=window.attempt,
        iteration=-1 if window.iteration is None else int(window.iteration),
        ranks=max(len(hosts_R), len(step_R)),
        hosts=tuple(sorted(set(hosts_R) - {""})),
        step=rounded(float(_middle(np.where(reported_R, step_R, np.nan)[chosen_R]))),
        step_max=rounded(float(np.max(step_R[reported_R]))),
        parts=_parts(window.parts_RP, chosen_R),
        sections=_sections(window.sections, window.section_RS, window.calls_RS, chosen_R),
        kernels=_kernels(window.kernels, window.kernel_RK, chosen_R),
        collectives=_collectives(window.collectives),
        device=_device(window.clock_R, window.temperature_R, window.throttled, chosen_R),
        waited=_waited(window.waited_R, chosen_R),
        changes=tuple(window.changes)[:CHANGES],
        slowest=_slowest(window.parts_RP, hosts_R),
    )


def policy_changes(old: Policy, new: Policy) -> tuple[PolicyChange, ...]:
    """The values that differ between two policies."""
    before, after = old.to_json(), new.to_json()
    return tuple(PolicyChange(name, before[name], after[name]) for name in after if before[name] != after[name])


def rounded(value: float) -> float:
    """Round to four digits, which halves the stored text."""
    return float(f"{value:.4g}")


def largest(table: Mapping[str, V], most: int, size: Callable[[V], float]) -> dict[str, V]:
    """The entries of a table with the largest ``size``, the largest first."""
    chosen = sorted(table, key=lambda name: -size(table[name]))[:most]
    return {name: table[name] for name in chosen}


def _survey(ranks: int, reported_R: np.ndarray[Any, np.dtype[np.bool_]]) -> Any:
    """The ranks over which medians are taken: all that reported, or a fixed random choice."""
    if ranks <= SURVEYED:
        return reported_R
    # Every n-th rank would be the same place of each node or of the layout.
    chosen = np.random.default_rng(ranks).choice(ranks, SURVEYED, replace=False)
    return chosen if reported_R[chosen].any() else reported_R


def _middle(values: Floats) -> Floats:
    """The median over the first axis without NaN; NaN where there is no value. Never warns."""
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


def _parts(parts_RP: Floats | None, chosen_R: Any) -> dict[str, float]:
    if parts_RP is None or not parts_RP.size:
        return {}
    middle_P = _middle(parts_RP[chosen_R])
    return {str(part): rounded(float(middle_P[p])) for p, part in enumerate(PARTS) if np.isfinite(middle_P[p])}


def _sections(
    names: Sequence[str], section_RS: Floats | None, calls_RS: Floats | None, chosen_R: Any
) -> dict[str, SectionSample]:
    if section_RS is None or not len(names):
        return {}
    middle_S = _middle(section_RS[chosen_R])
    calls_S = np.ones(len(names)) if calls_RS is None else _middle(calls_RS[chosen_R])
    worst_S = np.argmax(np.where(np.isfinite(section_RS), section_RS, -np.inf), axis=0)
    table = {
        name[:NAME]: SectionSample(
            rounded(float(middle_S[s])),
            rounded(float(section_RS[worst_S[s], s])),
            int(worst_S[s]),
            rounded(float(calls_S[s])) if np.isfinite(calls_S[s]) else 1.0,
        )
        for s, name in enumerate(names)
        if np.isfinite(middle_S[s]) and name != STEP_SECTION  # the step itself explains nothing
    }
    return largest(table, SECTIONS, lambda section: section.median * section.calls)


def _kernels(names: Sequence[str], kernel_RK: Floats | None, chosen_R: Any) -> dict[str, float]:
    if kernel_RK is None or not len(names):
        return {}
    middle_K = _middle(kernel_RK[chosen_R])
    table = {name[:NAME]: rounded(float(middle_K[k])) for k, name in enumerate(names) if np.isfinite(middle_K[k])}
    return largest(table, KERNELS, lambda spent: spent)


def _collectives(groups: Mapping[str, tuple[float, ...]]) -> dict[str, CollectiveSample]:
    table = {
        name[:NAME]: CollectiveSample(*map(rounded, figures))
        for name, figures in groups.items()
        if np.isfinite(figures).all()
    }
    return largest(table, COLLECTIVES, lambda collective: collective.busy)


def _device(
    clock_R: Floats | None, temperature_R: Floats | None, throttled: Mapping[str, int], chosen_R: Any
) -> DeviceSample | None:
    clock = clock_min = temperature = clock_rank = temperature_rank = temperature_median = None
    if clock_R is not None and np.isfinite(clock_R).any():
        clock, clock_min = rounded(float(_middle(clock_R[chosen_R]))), rounded(float(np.nanmin(clock_R)))
        clock = clock if np.isfinite(clock) else clock_min
        clock_rank = int(np.nanargmin(clock_R))
    if temperature_R is not None and np.isfinite(temperature_R).any():
        temperature = rounded(float(np.nanmax(temperature_R)))
        temperature_rank = int(np.nanargmax(temperature_R))
        middle = rounded(float(_middle(temperature_R[chosen_R])))
        temperature_median = middle if np.isfinite(middle) else temperature
    held = largest({reason[:NAME]: count for reason, count in throttled.items() if count > 0}, REASONS, float)
    known = clock is not None or temperature is not None or held
    if not known:
        return None
    return DeviceSample(clock, clock_min, temperature, held, clock_rank, temperature_rank, temperature_median)


def _waited(waited_R: Floats | None, chosen_R: Any) -> Waited | None:
    if waited_R is None or not np.isfinite(waited_R[chosen_R]).any():
        return None
    return Waited(rounded(float(_middle(waited_R[chosen_R]))), rounded(float(np.nanmax(waited_R))))


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
            rounded(float(work_R[rank])),
            rounded(float(work_R[rank]) - usual),
            tuple(rounded(float(own)) for own in own_RP[rank]),
        )
        for rank in top[np.argsort(-work_R[top], kind="stable")]
    )


# Merging --------------------------------------------------------------------------------------------------------------

Weighted = tuple[float, float]
"""A value and its weight."""


def weighted_median(values: Sequence[Weighted]) -> float:
    """The value with half of the weight on each side; between two such values, their mean.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("a median needs at least one value")
    ordered = sorted(values)
    half = sum(weight for _, weight in ordered) / 2
    passed = 0.0
    for position, (value, weight) in enumerate(ordered):
        passed += weight
        if passed > half * (1 + 1e-9):
            return value
        if passed >= half * (1 - 1e-9) and position + 1 < len(ordered):
            return (value + ordered[position + 1][0]) / 2
    return ordered[-1][0]


def merged(samples: Sequence[Sample]) -> Sample:
    """Merge successive samples: medians weighted by time, maxima of maxima, all changes; the rest is the last one's."""
    last = samples[-1]
    if len(samples) == 1:
        return last
    return last._replace(
        seconds=round(sum(sample.seconds for sample in samples), 1),
        step=_median([(s.step, s.seconds) for s in samples]),
        step_max=max(s.step_max for s in samples),
        parts={name: _median(values) for name, values in _columns([(s.parts, s.seconds) for s in samples]).items()},
        sections=_merged_sections(samples),
        kernels=largest(
            {name: _median(values) for name, values in _columns([(s.kernels, s.seconds) for s in samples]).items()},
            KERNELS,
            lambda spent: spent,
        ),
        collectives=_merged_collectives(samples),
        device=_merged_device(samples),
        waited=_merged_waited(samples),
        changes=tuple(change for s in samples for change in s.changes)[-CHANGES:],
        slowest=_merged_slowest(samples),
    )


def _median(values: Sequence[Weighted]) -> float:
    return rounded(weighted_median(values))


def _columns(tables: Sequence[tuple[Mapping[str, V], float]]) -> dict[str, list[tuple[V, float]]]:
    """Values of several tables by name, each with its table's weight."""
    columns: dict[str, list[tuple[V, float]]] = {}
    for table, weight in tables:
        for name, value in table.items():
            columns.setdefault(name, []).append((value, weight))
    return columns


def _merged_sections(samples: Sequence[Sample]) -> dict[str, SectionSample]:
    made: dict[str, SectionSample] = {}
    for name, rows in _columns([(s.sections, s.seconds) for s in samples]).items():
        worst = max((section for section, _ in rows), key=lambda section: section.max)
        made[name] = SectionSample(
            _median([(section.median, weight) for section, weight in rows]),
            worst.max,
            worst.worst,
            _median([(section.calls, weight) for section, weight in rows]),
        )
    return largest(made, SECTIONS, lambda section: section.median * section.calls)


def _merged_collectives(samples: Sequence[Sample]) -> dict[str, CollectiveSample]:
    made = {
        name: CollectiveSample(
            _median([(each.busy, weight) for each, weight in rows]),
            _median([(each.shortest, weight) for each, weight in rows]),
            _median(known) if (known := [(each.bandwidth, w) for each, w in rows if each.bandwidth]) else 0.0,
        )
        for name, rows in _columns([(s.collectives, s.seconds) for s in samples]).items()
    }
    return largest(made, COLLECTIVES, lambda collective: collective.busy)


def _merged_device(samples: Sequence[Sample]) -> DeviceSample | None:
    rows = [(s.device, s.seconds) for s in samples if s.device is not None]
    if not rows:
        return None
    clocks = [(device.clock, weight) for device, weight in rows if device.clock is not None]
    heats = [(device.temperature_median, weight) for device, weight in rows if device.temperature_median is not None]
    throttled: dict[str, int] = {}
    for device, _ in rows:
        for reason, ranks in device.throttled.items():
            throttled[reason] = max(ranks, throttled.get(reason, 0))
    slowest = min((d for d, _ in rows if d.clock_min is not None), key=lambda d: d.clock_min or 0.0, default=None)
    hottest = max((d for d, _ in rows if d.temperature is not None), key=lambda d: d.temperature or 0.0, default=None)
    return DeviceSample(
        _median(clocks) if clocks else None,
        slowest.clock_min if slowest else None,
        hottest.temperature if hottest else None,
        largest(throttled, REASONS, float),
        slowest.clock_rank if slowest else None,
        hottest.temperature_rank if hottest else None,
        _median(heats) if heats else None,
    )


def _merged_waited(samples: Sequence[Sample]) -> Waited | None:
    rows = [(s.waited, s.seconds) for s in samples if s.waited is not None]
    if not rows:
        return None
    return Waited(_median([(waited.median, weight) for waited, weight in rows]), max(waited.max for waited, _ in rows))


def _merged_slowest(samples: Sequence[Sample]) -> tuple[SlowRank, ...]:
    """The listed ranks with their means, ordered by lateness times the time they were listed."""
    listed: dict[int, list[tuple[SlowRank, float]]] = {}
    for sample in samples:
        for slow in sample.slowest:
            listed.setdefault(slow.rank, []).append((slow, sample.seconds))
    made: list[tuple[float, SlowRank]] = []
    for rank, rows in listed.items():
        weight = sum(seconds for _, seconds in rows)
        parts = zip(*([each * seconds for each in slow.parts] for slow, seconds in rows), strict=False)
        mean = SlowRank(
            rank,
            rows[-1][0].host,
            rounded(sum(slow.work * seconds for slow, seconds in rows) / weight),
            rounded(sum(slow.late * seconds for slow, seconds in rows) / weight),
            tuple(rounded(sum(each) / weight) for each in parts),
        )
        made.append((mean.late * weight, mean))
    return tuple(slow for _, slow in sorted(made, key=lambda each: -each[0])[:SLOWEST])
