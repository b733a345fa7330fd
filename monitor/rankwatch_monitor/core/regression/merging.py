"""Several samples as one: medians of medians, weighted by the time each stands for; maxima of maxima; marks stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from rankwatch_monitor.core.regression.sample import (
    CHANGES,
    COLLECTIVES,
    KERNELS,
    REASONS,
    SECTIONS,
    SLOWEST,
    CollectiveSample,
    DeviceSample,
    Sample,
    SectionSample,
    SlowRank,
    Waited,
    largest,
    short,
)

V = TypeVar("V")

Weighted = tuple[float, float]
"""A value and its weight."""


def weighted_median(values: Sequence[Weighted]) -> float:
    """The value with half of the weight on each side; between two such values, their middle.

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
    """One sample for several that follow each other; what only one can be is the last one's."""
    last = samples[-1]
    if len(samples) == 1:
        return last
    return last._replace(
        seconds=round(sum(sample.seconds for sample in samples), 1),
        step=_median([(s.step, s.seconds) for s in samples]),
        step_max=max(s.step_max for s in samples),
        parts={name: _median(values) for name, values in _columns([(s.parts, s.seconds) for s in samples]).items()},
        sections=_sections(samples),
        kernels=largest(
            {name: _median(values) for name, values in _columns([(s.kernels, s.seconds) for s in samples]).items()},
            KERNELS,
            lambda spent: spent,
        ),
        collectives=_collectives(samples),
        device=_device(samples),
        waited=_waited(samples),
        changes=tuple(change for s in samples for change in s.changes)[-CHANGES:],
        slowest=_slowest(samples),
    )


def _median(values: Sequence[Weighted]) -> float:
    return short(weighted_median(values))


def _columns(tables: Sequence[tuple[Mapping[str, V], float]]) -> dict[str, list[tuple[V, float]]]:
    """By name the values of several tables, each with its table's weight."""
    columns: dict[str, list[tuple[V, float]]] = {}
    for table, weight in tables:
        for name, value in table.items():
            columns.setdefault(name, []).append((value, weight))
    return columns


def _sections(samples: Sequence[Sample]) -> dict[str, SectionSample]:
    made: dict[str, SectionSample] = {}
    for name, told in _columns([(s.sections, s.seconds) for s in samples]).items():
        worst = max((section for section, _ in told), key=lambda section: section.max)
        made[name] = SectionSample(
            _median([(section.median, weight) for section, weight in told]),
            worst.max,
            worst.worst,
            _median([(section.calls, weight) for section, weight in told]),
        )
    return largest(made, SECTIONS, lambda section: section.median * section.calls)


def _collectives(samples: Sequence[Sample]) -> dict[str, CollectiveSample]:
    made = {
        name: CollectiveSample(
            _median([(each.busy, weight) for each, weight in told]),
            _median([(each.shortest, weight) for each, weight in told]),
        )
        for name, told in _columns([(s.collectives, s.seconds) for s in samples]).items()
    }
    return largest(made, COLLECTIVES, lambda collective: collective.busy)


def _device(samples: Sequence[Sample]) -> DeviceSample | None:
    told = [(s.device, s.seconds) for s in samples if s.device is not None]
    if not told:
        return None
    clocks = [(device.clock, weight) for device, weight in told if device.clock is not None]
    throttled: dict[str, int] = {}
    for device, _ in told:
        for reason, ranks in device.throttled.items():
            throttled[reason] = max(ranks, throttled.get(reason, 0))
    return DeviceSample(
        _median(clocks) if clocks else None,
        min((d.clock_min for d, _ in told if d.clock_min is not None), default=None),
        max((d.temperature for d, _ in told if d.temperature is not None), default=None),
        largest(throttled, REASONS, float),
    )


def _waited(samples: Sequence[Sample]) -> Waited | None:
    told = [(s.waited, s.seconds) for s in samples if s.waited is not None]
    if not told:
        return None
    return Waited(_median([(waited.median, weight) for waited, weight in told]), max(waited.max for waited, _ in told))


def _slowest(samples: Sequence[Sample]) -> tuple[SlowRank, ...]:
    """Of each rank that was listed its means; those that were listed most of the time first, then the latest."""
    listed: dict[int, list[tuple[SlowRank, float]]] = {}
    for sample in samples:
        for slow in sample.slowest:
            listed.setdefault(slow.rank, []).append((slow, sample.seconds))
    made: list[tuple[float, SlowRank]] = []
    for rank, told in listed.items():
        weight = sum(seconds for _, seconds in told)
        parts = zip(*([each * seconds for each in slow.parts] for slow, seconds in told), strict=False)
        mean = SlowRank(
            rank,
            told[-1][0].host,
            short(sum(slow.work * seconds for slow, seconds in told) / weight),
            short(sum(slow.late * seconds for slow, seconds in told) / weight),
            tuple(short(sum(each) / weight) for each in parts),
        )
        made.append((mean.late * weight, mean))
    return tuple(slow for _, slow in sorted(made, key=lambda each: -each[0])[:SLOWEST])
