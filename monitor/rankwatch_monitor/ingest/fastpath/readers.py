"""What is done with the numbers of a layout: the readers of :data:`.otlp.READERS` once more, for what is ordinary.

``steps`` is asked once for each layout. What it can see then (names, statistics, how many there are) it checks then,
and raises :class:`Unusual` where the full decoder would have something to say. What is left for each report are checks
of many numbers at once: a sum below the end means, where none is negative, that each of them is; and a NaN makes the
sum a NaN, which is below nothing.
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
from rankwatch_monitor.ingest.otlp.devices import ERROR_TYPE, READINGS
from rankwatch_monitor.ingest.otlp.kernels import KERNELS
from rankwatch_monitor.ingest.otlp.named_statistics import COUNT_END, SECONDS_END, Things
from rankwatch_monitor.ingest.otlp.scalars import AGES, NUMBERS, WHOLE_END
from rankwatch_monitor.ingest.otlp.sections import LONGEST
from rankwatch_monitor.ingest.otlp.windows import CPU, GROUPS, PARTS, SECTIONS

Several = Callable[[Values], Values]


class Unusual(Exception):  # noqa: N818 - no fault: the full decoder reads such a scope
    """Something that no layout is made of."""


class Told(NamedTuple):
    """The points of one metric."""

    at: tuple[int, ...]
    """Where the value of each stands among the values."""
    attributes: tuple[Mapping[str, str], ...]
    whole: bool
    """All values are integers on the wire; else all are doubles."""
    time_at: int | None
    """Where the time of the first one stands; None: it has none."""


class Once(NamedTuple):
    """What is taken only if it was not told before, and the time that it carries."""

    told: Any
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
"""The metrics that are read here: all of the contract but the histogram of finished sections."""


def steps(metrics: Mapping[str, Told], limits: Limits) -> list[Step]:
    """Return what is to be done with the values of a layout, whose metrics are all of the contract.

    Raises:
        Unusual: the full decoder has to read this.
    """
    made: list[Step] = [_scalars(metrics)]
    for name, field in {semconv.SECTION_OPEN_DURATION.name: "open_sections", **LONGEST}.items():
        if (told := metrics.get(name)) is not None:
            made.append(_seconds_of(told, field, _texts(told, semconv.ATTR_SECTION, limits, limits.sections_per_job)))
    if (told := metrics.get(semconv.SECTION_FIRST.name)) is not None:
        made.append(_held(told, "first_time", _texts(told, semconv.ATTR_SECTION, limits, limits.sections_per_job)))
    if (told := metrics.get(semconv.TELEMETRY_DROPPED.name)) is not None:
        made.append(_counts_of(told, "dropped", _texts(told, semconv.ATTR_REASON, limits, limits.sections_per_job)))
    if (told := metrics.get(semconv.KERNEL_SOURCE.name)) is not None:
        made.append(_source(told, limits))
    if any(name in metrics for name in WINDOW):
        made += _window(metrics, limits)
    if any(name in metrics for name in KERNEL):
        made.append(_kernels(metrics, limits))
    made += _device(metrics, limits)
    return made


# One number each -----------------------------------------------------------------------------------------------------


def _one(told: Told) -> int:
    if len(told.at) != 1:
        raise Unusual
    return told.at[0]


def _scalars(metrics: Mapping[str, Told]) -> Step:
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


def _texts(told: Told, key: str, limits: Limits, most: int) -> tuple[str, ...]:
    """The name of each point, all different and all such as may be taken."""
    texts = tuple(each.get(key, "") for each in told.attributes)
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
    """Whether each is a number from 0 up to below ``end``: no for some that are, never yes for one that is not."""
    return min(values) >= 0 and sum(values) < end


def _seconds_of(told: Told, field: str, texts: tuple[str, ...], end: float = inf) -> Step:
    several, whole = _several(told.at), told.whole

    def step(values: Values, fields: dict[str, Any]) -> bool:
        found = several(values)
        if not _within(found, end):
            return False
        fields[field] = dict(zip(texts, map(float, found) if whole else found, strict=True))
        return True

    return step


def _counts_of(told: Told, field: str, texts: tuple[str, ...]) -> Step:
    several = _several(told.at)

    def step(values: Values, fields: dict[str, Any]) -> bool:
        found = several(values)
        if not _within(found, WHOLE_END):
            return False
        fields[field] = dict(zip(texts, map(int, found), strict=True))
        return True

    return step


def _held(told: Told, field: str, texts: tuple[str, ...]) -> Step:
    several = _several(told.at)

    def step(values: Values, fields: dict[str, Any]) -> bool:
        found = several(values)
        if not {0, 1}.issuperset(found):
            return False
        fields[field] = tuple(compress(texts, found))
        return True

    return step


def _source(told: Told, limits: Limits) -> Step:
    at = _one(told)
    (source,) = _texts(told, semconv.ATTR_SOURCE, limits, 1)
    reason = told.attributes[0].get(semconv.ATTR_REASON, "")
    if not reason.isprintable() or reason != " ".join(reason.split()) or len(reason) > limits.name_length:
        raise Unusual

    def step(values: Values, fields: dict[str, Any]) -> bool:
        fields["kernel_source"], fields["kernel_source_reason"] = source, reason
        return bool(values[at] == 1)

    return step


# Statistics by name ---------------------------------------------------------------------------------------------------


class _Columns(NamedTuple):
    """Statistics of things, a column each; the things are in the same order in all of them."""

    things: tuple[str, ...]
    calls: Several
    seconds: Several
    """All of them."""
    of: Mapping[str, Several]

    def counts(self, values: Values) -> Values | None:
        """How often each was called; None where that is not ordinary."""
        found = self.calls(values)
        if not (min(found) >= 1 and sum(found) < COUNT_END):
            return None
        counts = tuple(map(int, found))
        return counts if counts == found else None


def _columns(seconds: Told | None, calls: Told | None, things: Things, limits: Limits) -> _Columns | None:
    if seconds is None and calls is None:
        return None
    if seconds is None or calls is None or seconds.whole:
        raise Unusual
    texts = _texts(calls, things.key, limits, getattr(limits, things.limit))
    at: dict[tuple[str, str], int] = {}
    for number, attributes in zip(seconds.at, seconds.attributes, strict=True):
        at[attributes.get(semconv.ATTR_STATISTIC, ""), attributes.get(things.key, "")] = number
    words = sorted(things.statistics)
    if len(at) != len(seconds.at) or at.keys() != {(word, text) for word in words for text in texts}:
        raise Unusual
    of = {word: _several([at[word, text] for text in texts]) for word in words}
    return _Columns(texts, _several(calls.at), _several(seconds.at), of)


def _first_times(metrics: Mapping[str, Told], which: Iterable[str]) -> Several:
    told = [metrics[name].time_at for name in which if name in metrics]
    if any(at is None for at in told):
        raise Unusual
    return _several([at for at in told if at is not None])


def _window(metrics: Mapping[str, Told], limits: Limits) -> Iterator[Step]:
    times = _first_times(metrics, WINDOW)
    iteration, steps_told = metrics.get(semconv.WINDOW_ITERATION.name), metrics.get(semconv.WINDOW_STEPS.name)
    iteration_at = None if iteration is None else _one(iteration)
    steps_at = None if steps_told is None else _one(steps_told)
    for name, field, key, known in (
        (semconv.STEP_PART.name, "parts", semconv.ATTR_PART, PARTS),
        (semconv.CPU_TIME.name, "cpu", semconv.ATTR_STATISTIC, CPU),
    ):
        if (told := metrics.get(name)) is not None:
            texts = _texts(told, key, limits, len(known))
            if not known.issuperset(texts):
                raise Unusual
            yield _seconds_of(told, field, texts, SECONDS_END)
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
        told = WindowReport(closed, int(whole[1]), of_sections, parts, of_groups, cpu.get("used"), cpu.get("waited"))
        fields["window"] = Once(told, max(times(values)))
        return told != WindowReport()

    yield step


def _sections(columns: _Columns, values: Values) -> dict[str, SectionWindow] | None:
    calls, of = columns.counts(values), columns.of
    median, most = of["median"](values), of["max"](values)
    if calls is None or not _within(columns.seconds(values), SECONDS_END) or any(map(gt, median, most)):
        return None
    made = map(SectionWindow, calls, median, of["tail"](values), most, of["mean"](values))
    return dict(zip(columns.things, made, strict=True))


def _groups(columns: _Columns, values: Values) -> dict[str, CollectiveWindow] | None:
    calls, of = columns.counts(values), columns.of
    if calls is None or not _within(columns.seconds(values), SECONDS_END):
        return None
    busy = of["busy"](values)
    made = map(CollectiveWindow, calls, busy, map(min, of["exposed"](values), busy), of["shortest"](values))
    return dict(zip(columns.things, made, strict=True))


def _kernels(metrics: Mapping[str, Told], limits: Limits) -> Step:
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
        told = dict(zip(columns.things, map(KernelStatistics, calls, median, *rest), strict=True))
        fields["kernels"] = Once(told, max(times(values)))
        return True

    return step


# The device -----------------------------------------------------------------------------------------------------------


def _device(metrics: Mapping[str, Told], limits: Limits) -> Iterator[Step]:
    readings = [(*reading, _one(metrics[name])) for name, reading in READINGS.items() if name in metrics]
    throttled, errors = metrics.get(semconv.GPU_THROTTLED.name), metrics.get(semconv.GPU_ERRORS.name)
    for told, field, make in ((throttled, "throttled", _held), (errors, "errors", _counts_of)):
        if told is not None:
            # Which of several devices is the rank's own is told by its resource, and errors have two names.
            if any(semconv.HW_ID in each or ERROR_TYPE in each for each in told.attributes):
                raise Unusual
            yield make(told, field, _texts(told, semconv.ATTR_REASON, limits, limits.attributes))
    named = tuple(field for told, field in ((throttled, "throttled"), (errors, "errors")) if told is not None)

    def step(values: Values, fields: dict[str, Any]) -> bool:
        told: dict[str, Any] = {field: fields.pop(field) for field in named}
        for field, least, most, at in readings:
            value = values[at]
            if not least <= value <= most:
                return False
            told[field] = float(value)
        fields["device"] = DeviceReading(**told)
        return True

    if readings or named:
        yield step
