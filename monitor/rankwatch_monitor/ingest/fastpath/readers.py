"""Steps of a layout: each checks some of its numbers and writes them into the fields of a report.

They do the same as the readers in :data:`.metrics_decoder.READERS`, but only for ordinary values. :func:`steps` is
called once per layout. Whatever depends on names and the number of points is checked then, and raises :class:`Unusual`
where the full decoder would have to reject something. Per report, many numbers are checked at once: if none is negative
and their sum is below the limit, each of them is; a NaN makes the sum NaN, which is below nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from math import inf
from operator import gt, itemgetter
from typing import Any, Final, NamedTuple

from rankwatch.contract import semconv
from rankwatch_monitor.core.events import (
    CollectiveWindow,
    DeviceReading,
    KernelStatistics,
    SectionWindow,
    WindowReport,
)
from rankwatch_monitor.ingest.fastpath.layout import Step, Values
from rankwatch_monitor.ingest.limits import Limits
from rankwatch_monitor.ingest.otlp.builder import COUNT_END, SECONDS_END, WHOLE_END
from rankwatch_monitor.ingest.otlp.devices import ERROR_TYPE, READINGS
from rankwatch_monitor.ingest.otlp.kernels import KERNELS
from rankwatch_monitor.ingest.otlp.named_statistics import SeriesKind
from rankwatch_monitor.ingest.otlp.scalars import AGES, NUMBERS
from rankwatch_monitor.ingest.otlp.sections import LONGEST
from rankwatch_monitor.ingest.otlp.windows import CPU, GROUPS, PARTS, SECTIONS

Several = Callable[[Values], Values]


class Unusual(Exception):  # noqa: N818 - no fault: the full decoder reads such a scope
    """The scope has something that layouts do not cover."""


class MetricPoints(NamedTuple):
    """The points of one metric."""

    at: tuple[int, ...]
    """Index of each point's value in the values of the layout."""
    attributes: tuple[Mapping[str, str], ...]
    whole: bool
    """Whether the values are integers on the wire; else all are doubles."""
    time_at: int | None
    """Index of the first point's time; None if it has none."""


class Unrepeated(NamedTuple):
    """A window or kernel report, to be dropped if it is a repetition."""

    value: Any
    time_ns: int


WINDOW: Final = (
    semconv.WINDOW_ITERATION.name,
    semconv.WINDOW_STEPS.name,
    semconv.WINDOW_SECTION_DURATION.name,
    semconv.WINDOW_SECTION_CALLS.name,
    semconv.STEP_PART.name,
    semconv.COLLECTIVE_DURATION.name,
    semconv.COLLECTIVE_CALLS.name,
    semconv.CPU_TIME.name,
)
KERNEL: Final = (semconv.KERNEL_DURATION.name, semconv.KERNEL_CALLS.name)
READ: Final = frozenset(
    {
        *AGES,
        *NUMBERS,
        *LONGEST,
        *READINGS,
        *WINDOW,
        *KERNEL,
        semconv.SESSION_ENDED.name,
        semconv.SECTION_OPEN_DURATION.name,
        semconv.SECTION_FIRST.name,
        semconv.TELEMETRY_DROPPED.name,
        semconv.KERNEL_SOURCE.name,
        semconv.GPU_THROTTLED.name,
        semconv.GPU_ERRORS.name,
    }
)
"""All metrics of the contract except the histogram of finished sections and :data:`FULL_DECODER`."""
FULL_DECODER: Final = frozenset({semconv.SCALAR.name, semconv.SCALAR_NON_FINITE.name})
"""Metrics that two ranks of a job send, with other names each time: scopes with them always get the full decoder."""


def steps(metrics: Mapping[str, MetricPoints], limits: Limits) -> list[Step]:
    """The steps of a layout with these metrics.

    Raises:
        Unusual: the full decoder has to read such scopes.
    """
    most = limits.sections_per_job
    made: list[Step] = [_scalars(metrics)]
    for name, field in {semconv.SECTION_OPEN_DURATION.name: "open_sections", **LONGEST}.items():
        if (points := metrics.get(name)) is not None:
            made.append(_seconds_of(points, field, _texts(points, semconv.ATTR_SECTION, limits, most)))
    if (points := metrics.get(semconv.SECTION_FIRST.name)) is not None:
        made.append(_active(points, "first_time", _texts(points, semconv.ATTR_SECTION, limits, most)))
    if (points := metrics.get(semconv.TELEMETRY_DROPPED.name)) is not None:
        made.append(_counts_of(points, "dropped", _texts(points, semconv.ATTR_REASON, limits, most)))
    if (points := metrics.get(semconv.KERNEL_SOURCE.name)) is not None:
        made.append(_source(points, limits))
    if any(name in metrics for name in WINDOW):
        made += _window(metrics, limits)
    if any(name in metrics for name in KERNEL):
        made.append(_kernels(metrics, limits))
    made += _device(metrics, limits)
    return made


# One number each -----------------------------------------------------------------------------------------------------


def _one(points: MetricPoints) -> int:
    if len(points.at) != 1:
        raise Unusual
    return points.at[0]


def _scalars(metrics: Mapping[str, MetricPoints]) -> Step:
    ages = [(field, _one(metrics[name])) for name, field in AGES.items() if name in metrics]
    numbers = [(field, _one(metrics[name])) for name, field in NUMBERS.items() if name in metrics]
    ended = metrics.get(semconv.SESSION_ENDED.name)
    ended_at = None if ended is None else _one(ended)

    def step(values: Values, fields: dict[str, Any]) -> bool:
        for field, at in ages:
            value = values[at]
            if not 0 <= value < inf:
                return False
            fields[field] = float(value)
        for field, at in numbers:
            value = values[at]
            if not 0 <= value < WHOLE_END:
                return False
            fields[field] = int(value)
        if ended_at is not None:
            fields["ended"] = values[ended_at] == 1
        return True

    return step


# Several, by name -----------------------------------------------------------------------------------------------------


def _texts(points: MetricPoints, key: str, limits: Limits, most: int) -> tuple[str, ...]:
    """The attribute ``key`` of each point; all are valid and different."""
    texts = tuple(each.get(key, "") for each in points.attributes)
    if len(set(texts)) != len(texts) or len(texts) > most:
        raise Unusual
    if not all(text and text.isprintable() and len(text) <= limits.name_length for text in texts):
        raise Unusual
    return texts


def _several(at: Sequence[int]) -> Several:
    if len(at) == 1:
        return lambda values: (values[at[0]],)
    several: Several = itemgetter(*at)
    return several


def _within(values: Values, end: float) -> bool:
    """Whether all values are in [0, end). May be wrong in one direction only: False for large valid ones."""
    return min(values) >= 0 and sum(values) < end


def _seconds_of(points: MetricPoints, field: str, texts: tuple[str, ...], end: float = inf) -> Step:
    several, whole = _several(points.at), points.whole

    def step(values: Values, fields: dict[str, Any]) -> bool:
        found = several(values)
        if not _within(found, end):
            return False
        fields[field] = dict(zip(texts, map(float, found) if whole else found, strict=True))
        return True

    return step


def _counts_of(points: MetricPoints, field: str, texts: tuple[str, ...]) -> Step:
    several = _several(points.at)

    def step(values: Values, fields: dict[str, Any]) -> bool:
        found = several(values)
        if not _within(found, WHOLE_END):
            return False
        fields[field] = dict(zip(texts, map(int, found), strict=True))
        return True

    return step


def _active(points: MetricPoints, field: str, texts: tuple[str, ...]) -> Step:
    several = _several(points.at)

    def step(values: Values, fields: dict[str, Any]) -> bool:
        found = several(values)
        if not {0, 1}.issuperset(found):
            return False
        fields[field] = tuple(compress(texts, found))
        return True

    return step


def _source(points: MetricPoints, limits: Limits) -> Step:
    at = _one(points)
    (source,) = _texts(points, semconv.ATTR_SOURCE, limits, 1)
    reason = points.attributes[0].get(semconv.ATTR_REASON, "")
    if not reason.isprintable() or reason != " ".join(reason.split()) or len(reason) > limits.name_length:
        raise Unusual

    def step(values: Values, fields: dict[str, Any]) -> bool:
        fields["kernel_source"], fields["kernel_source_reason"] = source, reason
        return bool(values[at] == 1)

    return step


# Statistics by name ---------------------------------------------------------------------------------------------------


class _Columns(NamedTuple):
    """Statistics by name, one column each, in the same order of names."""

    names: tuple[str, ...]
    calls: Several
    seconds: Several
    """The values of all statistics."""
    of: Mapping[str, Several]

    def counts(self, values: Values) -> Values | None:
        """The calls of each name; None if they are not ordinary."""
        found = self.calls(values)
        if not (min(found) >= 1 and sum(found) < COUNT_END):
            return None
        counts = tuple(map(int, found))
        return counts if counts == found else None


def _columns(
    seconds: MetricPoints | None, calls: MetricPoints | None, kind: SeriesKind, limits: Limits
) -> _Columns | None:
    if seconds is None and calls is None:
        return None
    if seconds is None or calls is None or seconds.whole:
        raise Unusual
    texts = _texts(calls, kind.key, limits, getattr(limits, kind.limit))
    at: dict[tuple[str, str], int] = {}
    for number, attributes in zip(seconds.at, seconds.attributes, strict=True):
        at[attributes.get(semconv.ATTR_STATISTIC, ""), attributes.get(kind.key, "")] = number
    words = sorted(kind.statistics)
    if len(at) != len(seconds.at) or at.keys() != {(word, text) for word in words for text in texts}:
        raise Unusual
    of = {word: _several([at[word, text] for text in texts]) for word in words}
    return _Columns(texts, _several(calls.at), _several(seconds.at), of)


def _first_times(metrics: Mapping[str, MetricPoints], which: Iterable[str]) -> Several:
    times = [metrics[name].time_at for name in which if name in metrics]
    if any(at is None for at in times):
        raise Unusual
    return _several([at for at in times if at is not None])


def _window(metrics: Mapping[str, MetricPoints], limits: Limits) -> Iterator[Step]:
    times = _first_times(metrics, WINDOW)
    iteration, steps_points = metrics.get(semconv.WINDOW_ITERATION.name), metrics.get(semconv.WINDOW_STEPS.name)
    iteration_at = None if iteration is None else _one(iteration)
    steps_at = None if steps_points is None else _one(steps_points)
    for name, field, key, known in (
        (semconv.STEP_PART.name, "parts", semconv.ATTR_PART, PARTS),
        (semconv.CPU_TIME.name, "cpu", semconv.ATTR_STATISTIC, CPU),
    ):
        if (points := metrics.get(name)) is not None:
            texts = _texts(points, key, limits, len(known))
            if not known.issuperset(texts):
                raise Unusual
            yield _seconds_of(points, field, texts, SECONDS_END)
    duration, calls = metrics.get(semconv.WINDOW_SECTION_DURATION.name), metrics.get(semconv.WINDOW_SECTION_CALLS.name)
    sections = _columns(duration, calls, SECTIONS, limits)
    duration, calls = metrics.get(semconv.COLLECTIVE_DURATION.name), metrics.get(semconv.COLLECTIVE_CALLS.name)
    groups = _columns(duration, calls, GROUPS, limits)

    def step(values: Values, fields: dict[str, Any]) -> bool:
        whole = [0 if at is None else values[at] for at in (iteration_at, steps_at)]
        if not all(0 <= value < WHOLE_END and value == int(value) for value in whole):
            return False
        of_sections = {} if sections is None else _sections(sections, values)
        of_groups = {} if groups is None else _groups(groups, values)
        if of_sections is None or of_groups is None:
            return False
        cpu = fields.pop("cpu", {})
        closed = None if iteration_at is None else int(whole[0])
        parts = fields.pop("parts", {})
        window = WindowReport(closed, int(whole[1]), of_sections, parts, of_groups, cpu.get("used"), cpu.get("waited"))
        fields["window"] = Unrepeated(window, max(times(values)))
        return window != WindowReport()

    yield step


def _sections(columns: _Columns, values: Values) -> dict[str, SectionWindow] | None:
    calls, of = columns.counts(values), columns.of
    median, most = of["median"](values), of["max"](values)
    if calls is None or not _within(columns.seconds(values), SECONDS_END) or any(map(gt, median, most)):
        return None
    made = map(SectionWindow, calls, median, of["tail"](values), most, of["mean"](values))
    return dict(zip(columns.names, made, strict=True))


def _groups(columns: _Columns, values: Values) -> dict[str, CollectiveWindow] | None:
    calls, of = columns.counts(values), columns.of
    if calls is None or not _within(columns.seconds(values), SECONDS_END):
        return None
    busy = of["busy"](values)
    made = map(CollectiveWindow, calls, busy, map(min, of["exposed"](values), busy), of["shortest"](values))
    return dict(zip(columns.names, made, strict=True))


def _kernels(metrics: Mapping[str, MetricPoints], limits: Limits) -> Step:
    times = _first_times(metrics, KERNEL)
    duration, called = metrics.get(semconv.KERNEL_DURATION.name), metrics.get(semconv.KERNEL_CALLS.name)
    columns = _columns(duration, called, KERNELS, limits)
    if columns is None:
        raise Unusual
    of = columns.of

    def step(values: Values, fields: dict[str, Any]) -> bool:
        calls = columns.counts(values)
        median, least, most = of["median"](values), of["min"](values), of["max"](values)
        if calls is None or not _within(columns.seconds(values), SECONDS_END):
            return False
        if any(map(gt, least, median)) or any(map(gt, median, most)):
            return False
        rest = of["tail"](values), of["mean"](values), least, most, of["stddev"](values)
        kernels = dict(zip(columns.names, map(KernelStatistics, calls, median, *rest), strict=True))
        fields["kernels"] = Unrepeated(kernels, max(times(values)))
        return True

    return step


# The device -----------------------------------------------------------------------------------------------------------


def _device(metrics: Mapping[str, MetricPoints], limits: Limits) -> Iterator[Step]:
    readings = [(*reading, _one(metrics[name])) for name, reading in READINGS.items() if name in metrics]
    throttled, errors = metrics.get(semconv.GPU_THROTTLED.name), metrics.get(semconv.GPU_ERRORS.name)
    for points, field, make in ((throttled, "throttled", _active), (errors, "errors", _counts_of)):
        if points is not None:
            # Several devices, and OpenTelemetry's own attribute of errors, are left to the full decoder.
            if any(semconv.HW_ID in each or ERROR_TYPE in each for each in points.attributes):
                raise Unusual
            yield make(points, field, _texts(points, semconv.ATTR_REASON, limits, limits.attributes))
    named = tuple(field for points, field in ((throttled, "throttled"), (errors, "errors")) if points is not None)

    def step(values: Values, fields: dict[str, Any]) -> bool:
        reading: dict[str, Any] = {field: fields.pop(field) for field in named}
        for field, least, most, at in readings:
            value = values[at]
            if not least <= value <= most:
                return False
            reading[field] = float(value)
        fields["device"] = DeviceReading(**reading)
        return True

    if readings or named:
        yield step
