"""What a layout reads: which of its numbers have to be in which range, and how the fields of a report are made of them.

:class:`Reading` is made once per layout, and does what the readers in :data:`.metrics_decoder.READERS` do for each
report. Whatever depends on names and the number of points is checked then, and raises :class:`Unusual` where the full
decoder would have to reject something. Of each report only the numbers are checked, many at once: if none is negative
and their sum is below the limit, each of them is; a NaN makes the sum NaN, which is below nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from operator import gt, itemgetter, le
from typing import Any, Final, NamedTuple

from rankwatch.contract import semconv
from rankwatch.contract.statistics import CollectiveWindow, KernelStatistics, OperationWindow, SectionWindow
from rankwatch_monitor.core.events import DeviceReading, RankReport, WindowReport
from rankwatch_monitor.ingest.limits import Limits
from rankwatch_monitor.ingest.otlp.builder import COUNT_END, SECONDS_END
from rankwatch_monitor.ingest.otlp.devices import ERROR_TYPE, READINGS
from rankwatch_monitor.ingest.otlp.kernels import KERNELS
from rankwatch_monitor.ingest.otlp.named_statistics import SeriesKind
from rankwatch_monitor.ingest.otlp.scalars import AGES, NUMBERS
from rankwatch_monitor.ingest.otlp.sections import LONGEST
from rankwatch_monitor.ingest.otlp.windows import CPU, GROUPS, OPERATIONS, PARTS, SECTIONS


class Unusual(Exception):  # noqa: N818 - no fault: the full decoder reads such a scope
    """The scope has something that layouts do not cover."""


class Number(NamedTuple):
    """A number of 8 bytes in a scope."""

    at: int
    """Its index in the :data:`Values`."""
    whole: bool
    """Whether it is an integer on the wire; else it is a double."""


class Point(NamedTuple):
    """A data point of a scope."""

    attributes: Mapping[str, str]
    time: Number | None
    value: Number


Points = Sequence[Point]
Metrics = Mapping[str, Points]
"""The points of each metric, by its name."""
Values = tuple[Any, ...]
"""A zero, and the needed numbers of a scope in the order of their offsets."""
ZERO: Final = 0
"""Index of a value that is always 0."""
Several = Callable[[Values], Values]
Make = Callable[[Values], Any]
"""Makes a field of a report. Raises :class:`Unusual` where some numbers are not ordinary."""


# What the classes themselves do, in half of the time.
_section: Final = partial(tuple.__new__, SectionWindow)
_collective: Final = partial(tuple.__new__, CollectiveWindow)
_operation: Final = partial(tuple.__new__, OperationWindow)
_kernel: Final = partial(tuple.__new__, KernelStatistics)


class Unrepeated(NamedTuple):
    """A window or kernel report, to be dropped if it is a repetition."""

    value: Any
    time_ns: int
    iteration: int | None = None


WINDOW: Final = (
    semconv.WINDOW_ITERATION.name,
    semconv.WINDOW_STEPS.name,
    semconv.WINDOW_SECTION_DURATION.name,
    semconv.WINDOW_SECTION_CALLS.name,
    semconv.STEP_PART.name,
    semconv.COLLECTIVE_DURATION.name,
    semconv.COLLECTIVE_CALLS.name,
    semconv.OPERATION_DURATION.name,
    semconv.OPERATION_SIZE.name,
    semconv.OPERATION_CALLS.name,
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


class Reading:
    """How the reports of one layout are read."""

    __slots__ = ("_makes", "_pick", "_seconds", "_whole")

    def __init__(self, metrics: Metrics, limits: Limits) -> None:
        """Derive it from the metrics of the contract.

        Raises:
            Unusual: the full decoder has to read such scopes.
        """
        draft = Draft(limits)
        fields = dict(_fields(metrics, draft))
        self._whole, self._seconds = _several(draft.whole or [ZERO]), _several(draft.seconds or [ZERO])
        self._makes = tuple(make for make in fields.values() if callable(make))
        made = [field for field, make in fields.items() if callable(make)]
        at = {field: len(made) + index for field, index in fields.items() if isinstance(index, int)}
        self._pick = _picks(RankReport, {field: i for i, field in enumerate(made)} | at)

    def fields(self, values: Values) -> list[Any]:
        """The fields of a report, in their order and without the identity.

        Raises:
            Unusual: some numbers are not ordinary.
        """
        seconds = self._seconds(values)
        if min(self._whole(values)) < 0 or min(seconds) < 0 or not sum(seconds) < SECONDS_END:
            raise Unusual
        return self._pick([*[make(values) for make in self._makes], *values])


class Draft:
    """The checks of a reading that is being derived."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.whole: list[int] = []
        """Indexes of whole numbers from 0 up."""
        self.seconds: list[int] = []
        """Indexes of seconds from 0 up."""

    def counts(self, points: Points) -> Several:
        """Take whole numbers from 0 up."""
        several = _several(at := _indexes(points))
        if all(point.value.whole for point in points):
            self.whole += at
            return several
        self.seconds += at  # doubles have the same bounds

        def counts(values: Values) -> Values:
            found = several(values)
            whole = tuple(map(int, found))
            if whole != found:
                raise Unusual
            return whole

        return counts

    def count(self, points: Points) -> int | Make:
        """Take a whole number from 0 up that is the only point of its metric: its index, or how it is made."""
        at, counts = _one(points), self.counts(points)
        return at if points[0].value.whole else lambda values: counts(values)[0]

    def durations(self, points: Points) -> Several:
        """Take seconds from 0 up."""
        self.seconds += _indexes(points)
        return _floats(points)

    def times(self, metrics: Metrics, which: Iterable[str]) -> Several:
        """Take the times of the first points of some metrics."""
        times = [metrics[name][0].time for name in which if name in metrics]
        if any(time is None for time in times):
            raise Unusual
        self.whole += (at := [time.at for time in times if time is not None])
        return _several(at)

    def texts(self, points: Points, key: str, most: int) -> tuple[str, ...]:
        """Take the attribute ``key`` of each point; all are valid and different."""
        texts = tuple(point.attributes.get(key, "") for point in points)
        if len(set(texts)) != len(texts) or len(texts) > most:
            raise Unusual
        if not all(text and text.isprintable() and len(text) <= self.limits.name_length for text in texts):
            raise Unusual
        return texts


def _indexes(points: Points) -> list[int]:
    return [point.value.at for point in points]


def _several(at: Sequence[int]) -> Several:
    if len(at) == 1:
        return lambda values: (values[at[0]],)
    several: Several = itemgetter(*at)
    return several


def _floats(points: Points) -> Several:
    several = _several(_indexes(points))
    if any(point.value.whole for point in points):
        return lambda values: tuple(map(float, several(values)))
    return several


def _picks(kind: Any, at: Mapping[str, int]) -> Callable[[list[Any]], list[Any]]:
    """A function that arranges values, each a field of a named tuple, as all of its fields that have a default."""
    defaults: Mapping[str, Any] = kind._field_defaults
    pick = itemgetter(*(at.get(field, i - len(defaults)) for i, field in enumerate(defaults)))
    return lambda values: list(pick([*values, *defaults.values()]))


def _fields(metrics: Metrics, draft: Draft) -> Iterator[tuple[str, int | Make]]:
    """The fields of a report: the index of a value, or how they are made."""
    most = draft.limits.sections_per_job
    yield from _scalars(metrics, draft)
    if semconv.SECTION_IDLE_DURATION.name in metrics and semconv.SECTION_OPEN_DURATION.name not in metrics:
        # Idle time is sent only while no section is open.
        yield "open_sections", lambda _values: {}
    for name, field in {semconv.SECTION_OPEN_DURATION.name: "open_sections", **LONGEST}.items():
        if (points := metrics.get(name)) is not None:
            yield field, _by_name(draft.texts(points, semconv.ATTR_SECTION, most), draft.durations(points))
    if (points := metrics.get(semconv.SECTION_FIRST.name)) is not None:
        yield "first_time", _active(draft.texts(points, semconv.ATTR_SECTION, most), draft.counts(points))
    if (points := metrics.get(semconv.TELEMETRY_DROPPED.name)) is not None:
        yield "dropped", _by_name(draft.texts(points, semconv.ATTR_REASON, most), draft.counts(points))
    if (points := metrics.get(semconv.KERNEL_SOURCE.name)) is not None:
        yield from _source(points, draft)
    if not metrics.keys().isdisjoint(WINDOW):
        yield "window", _window(metrics, draft)
    if not metrics.keys().isdisjoint(KERNEL):
        yield "kernels", _kernels(metrics, draft)
    if (device := _device(metrics, draft)) is not None:
        yield "device", device


# One number each -----------------------------------------------------------------------------------------------------


def _one(points: Points) -> int:
    if len(points) != 1:
        raise Unusual
    return points[0].value.at


def _scalars(metrics: Metrics, draft: Draft) -> Iterator[tuple[str, int | Make]]:
    for name, field in AGES.items():
        if (points := metrics.get(name)) is not None:
            if points[0].value.whole:
                raise Unusual
            draft.durations(points)
            yield field, _one(points)
    for name, field in NUMBERS.items():
        if (points := metrics.get(name)) is not None:
            yield field, draft.count(points)
    if (points := metrics.get(semconv.SESSION_ENDED.name)) is not None:
        at = _one(points)
        yield "ended", lambda values: values[at] == 1


# Several, by name -----------------------------------------------------------------------------------------------------


def _by_name(texts: Sequence[str], several: Several) -> Make:
    return lambda values: dict(zip(texts, several(values), strict=True))


def _active(texts: Sequence[str], several: Several) -> Make:
    def make(values: Values) -> tuple[str, ...]:
        found = several(values)
        if not {0, 1}.issuperset(found):
            raise Unusual
        return tuple(compress(texts, found))

    return make


def _source(points: Points, draft: Draft) -> Iterator[tuple[str, Make]]:
    at = _one(points)
    (source,) = draft.texts(points, semconv.ATTR_SOURCE, 1)
    reason = points[0].attributes.get(semconv.ATTR_REASON, "")
    if not reason.isprintable() or reason != " ".join(reason.split()) or len(reason) > draft.limits.name_length:
        raise Unusual

    def make(values: Values) -> str:
        if values[at] != 1:
            raise Unusual
        return source

    yield "kernel_source", make
    yield "kernel_source_reason", lambda _values: reason


# Statistics by name ---------------------------------------------------------------------------------------------------


class _Statistics(NamedTuple):
    """Statistics by name: the calls and each statistic of all names, in the same order."""

    names: tuple[str, ...]
    calls: Several
    of: Mapping[str, Several]


def _statistics(seconds: Points | None, calls: Points | None, kind: SeriesKind, draft: Draft) -> _Statistics | None:
    if seconds is None and calls is None:
        return None
    if seconds is None or calls is None:
        raise Unusual
    names = draft.texts(calls, kind.key, getattr(draft.limits, kind.limit))
    words = sorted(kind.statistics)
    points = _of_words(seconds, kind.key, words, names)
    of = {word: draft.durations([points[word, name] for name in names]) for word in words}
    called = draft.counts(calls)

    def at_least_one(values: Values) -> Values:
        found = called(values)
        if 0 in found or max(found) >= COUNT_END:
            raise Unusual
        return found

    return _Statistics(names, at_least_one, of)


def _of_words(several: Points, key: str, words: Sequence[str], names: Sequence[str]) -> dict[tuple[str, str], Point]:
    """The points by statistic and name; there is one for each."""
    points: dict[tuple[str, str], Point] = {}
    for point in several:
        points[point.attributes.get(semconv.ATTR_STATISTIC, ""), point.attributes.get(key, "")] = point
    if len(points) != len(several) or points.keys() != {(word, name) for word in words for name in names}:
        raise Unusual
    return points


def _window(metrics: Metrics, draft: Draft) -> Make:
    if metrics.keys() & set(WINDOW) == {semconv.WINDOW_STEPS.name}:
        raise Unusual  # it is empty if there are 0
    times = draft.times(metrics, WINDOW)
    iteration = _number(metrics.get(semconv.WINDOW_ITERATION.name), draft, None)
    steps = _number(metrics.get(semconv.WINDOW_STEPS.name), draft, 0)
    sections, groups = _sections(metrics, draft), _groups(metrics, draft)
    operations = _operations(metrics, draft)
    parts = _words(metrics, semconv.STEP_PART.name, semconv.ATTR_PART, PARTS, draft)
    cpu = _words(metrics, semconv.CPU_TIME.name, semconv.ATTR_STATISTIC, CPU, draft)

    def make(values: Values) -> Unrepeated:
        window = WindowReport(
            iteration(values),
            steps(values),
            sections(values),
            parts(values),
            groups(values),
            cpu(values).get("waited"),
            operations=operations(values),
        )
        return Unrepeated(window, max(times(values)), window.iteration)

    return make


def _number(points: Points | None, draft: Draft, default: int | None) -> Make:
    if points is None:
        return lambda _values: default
    made = draft.count(points)
    return itemgetter(made) if isinstance(made, int) else made


def _nothing(_values: Values) -> dict[str, Any]:
    return {}


def _words(metrics: Metrics, name: str, key: str, known: frozenset[str], draft: Draft) -> Make:
    points = metrics.get(name)
    if points is None:
        return _nothing
    texts = draft.texts(points, key, len(known))
    if not known.issuperset(texts):
        raise Unusual
    return _by_name(texts, draft.durations(points))


def _sections(metrics: Metrics, draft: Draft) -> Make:
    duration, calls = metrics.get(semconv.WINDOW_SECTION_DURATION.name), metrics.get(semconv.WINDOW_SECTION_CALLS.name)
    found = _statistics(duration, calls, SECTIONS, draft)
    if found is None:
        return _nothing
    median_of, tail, max_of, mean = (found.of[word] for word in ("median", "tail", "max", "mean"))

    def make(values: Values) -> dict[str, SectionWindow]:
        median, most = median_of(values), max_of(values)
        if any(map(gt, median, most)):
            raise Unusual
        columns = zip(found.calls(values), median, tail(values), most, mean(values), strict=True)
        return dict(zip(found.names, map(_section, columns), strict=True))

    return make


def _groups(metrics: Metrics, draft: Draft) -> Make:
    duration, calls = metrics.get(semconv.COLLECTIVE_DURATION.name), metrics.get(semconv.COLLECTIVE_CALLS.name)
    found = _statistics(duration, calls, GROUPS, draft)
    if found is None:
        return _nothing
    busy_of, exposed, shortest = (found.of[word] for word in ("busy", "exposed", "shortest"))

    def make(values: Values) -> dict[str, CollectiveWindow]:
        busy = busy_of(values)
        columns = zip(found.calls(values), busy, map(min, exposed(values), busy), shortest(values), strict=True)
        return dict(zip(found.names, map(_collective, columns), strict=True))

    return make


def _operations(metrics: Metrics, draft: Draft) -> Make:
    duration, calls = metrics.get(semconv.OPERATION_DURATION.name), metrics.get(semconv.OPERATION_CALLS.name)
    sizes = metrics.get(semconv.OPERATION_SIZE.name)
    found = _statistics(duration, calls, OPERATIONS, draft)
    if found is None and sizes is None:
        return _nothing
    if found is None or sizes is None:
        raise Unusual
    words = sorted(OPERATIONS.sizes)
    points = _of_words(sizes, OPERATIONS.key, words, found.names)
    of = {word: draft.counts([points[word, name] for name in found.names]) for word in words}
    total, shortest = found.of["total"], found.of["shortest"]

    def make(values: Values) -> dict[str, OperationWindow]:
        moved = [of[word](values) for word in ("bytes", "largest", "bus")]
        if max(map(max, moved)) >= COUNT_END:
            raise Unusual
        columns = zip(found.calls(values), total(values), shortest(values), *moved, strict=True)
        return dict(zip(found.names, map(_operation, columns), strict=True))

    return make


def _kernels(metrics: Metrics, draft: Draft) -> Make:
    times = draft.times(metrics, KERNEL)
    duration, called = metrics.get(semconv.KERNEL_DURATION.name), metrics.get(semconv.KERNEL_CALLS.name)
    found = _statistics(duration, called, KERNELS, draft)
    assert found is not None
    of = [found.of[word] for word in ("median", "tail", "mean", "min", "max", "stddev")]

    def make(values: Values) -> Unrepeated:
        median, tail, mean, least, most, stddev = (statistic(values) for statistic in of)
        if any(map(gt, least, median)) or any(map(gt, median, most)):
            raise Unusual
        columns = zip(found.calls(values), median, tail, mean, least, most, stddev, strict=True)
        return Unrepeated(dict(zip(found.names, map(_kernel, columns), strict=True)), max(times(values)))

    return make


# The device -----------------------------------------------------------------------------------------------------------


def _device(metrics: Metrics, draft: Draft) -> Make | None:
    """The maker of the device's reading; None: it is not reported."""
    readings = {reading: metrics[name] for name, reading in READINGS.items() if name in metrics}
    for points in readings.values():
        _one(points)
    numbers = _floats([points[0] for points in readings.values()]) if readings else lambda _values: ()
    least, most = [reading.least for reading in readings], [reading.most for reading in readings]
    fields = [reading.field for reading in readings]
    makes: list[Make] = []
    for name, field, make_of in (
        (semconv.GPU_THROTTLED.name, "throttled", _active),
        (semconv.GPU_ERRORS.name, "errors", _by_name),
    ):
        if points := metrics.get(name, ()):
            # Several devices, and OpenTelemetry's own attribute of errors, are left to the full decoder.
            if any(semconv.HW_ID in point.attributes or ERROR_TYPE in point.attributes for point in points):
                raise Unusual
            texts = draft.texts(points, semconv.ATTR_REASON, draft.limits.attributes)
            makes.append(make_of(texts, draft.counts(points)))
            fields.append(field)
    if not fields:
        return None
    pick = _picks(DeviceReading, {field: i for i, field in enumerate(fields)})

    def make(values: Values) -> DeviceReading:
        found = numbers(values)
        if not all(map(le, least, found)) or not all(map(le, found, most)):
            raise Unusual
        return DeviceReading._make(pick([*found, *[each(values) for each in makes]]))

    return make
