"""The metrics of the contract as OpenTelemetry instruments. Imported on the exporter thread only."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from rankwatch.contract import semconv
from rankwatch.contract.semconv import Metric
from rankwatch.profiling.profiler import Profiling, Speed
from rankwatch.recording.recorder import RING_LENGTH, Recorder, SectionRun
from rankwatch.recording.scalars import NOTHING, Logged, Scalars
from rankwatch.recording.section_statistics import DurationMaxima, MaximaUpdate
from rankwatch.recording.shared_slots import FIRST_STEP_AT, PHASE_SHUT_DOWN, Reading, read

Values = Iterable[tuple[float | int, Mapping[str, str]]]


def _from(newest: Callable[[], Any], values: Callable[[Any], Values]) -> Values:
    return () if (source := newest()) is None else values(source)


def _value(value: float | int | None) -> Values:
    return () if value is None else ((value, {}),)


def _by_section(values: Mapping[str, float]) -> Values:
    return [(value, {semconv.ATTR_SECTION: name}) for name, value in values.items()]


def _statistics(values: Mapping[str, tuple[Any, ...]], attribute: str, fields: Sequence[str]) -> Values:
    """One point for each name and statistic of named tuples."""
    return [
        (getattr(value, statistic), {attribute: name, semconv.ATTR_STATISTIC: statistic})
        for name, value in values.items()
        for statistic in fields
    ]


def _calls(values: Mapping[str, Any], attribute: str) -> Values:
    return [(value.calls, {attribute: name}) for name, value in values.items()]


def _sections(speed: Speed) -> Mapping[str, Any]:
    return speed.window.sections if speed.window is not None else {}


def _cpu(speed: Speed) -> Values:
    times = zip(("used", "waited"), speed.cpu or (), strict=False)
    return [(value, {semconv.ATTR_STATISTIC: statistic}) for statistic, value in times]


def _device(metric: Metric, speed: Speed) -> Values:
    return speed.devices.get(metric, ())


def _source(speed: Speed) -> Values:
    if speed.source is None:
        return ()
    name, reason = speed.source
    return [(1, {semconv.ATTR_SOURCE: name, semconv.ATTR_REASON: reason})]


FROM_SLOTS: Final[Mapping[Metric, Callable[[Reading], Values]]] = {
    semconv.HEARTBEATS: lambda reading: _value(reading.beats),
    semconv.HEARTBEAT_AGE: lambda reading: _value(reading.heartbeat_age),
    semconv.ITERATION: lambda reading: _value(reading.iteration),
    semconv.PROGRESS: lambda reading: _value(reading.progress),
    semconv.FIRST_ITERATION: lambda reading: _value(reading.resumed_at),
    semconv.FIRST_ITERATION_AGE: lambda reading: _value(reading.first_iteration_age),
    semconv.SESSION_ENDED: lambda reading: _value(1 if reading.phase == PHASE_SHUT_DOWN else None),
    semconv.SECTION_OPEN_DURATION: lambda reading: _by_section(reading.open_sections),
    semconv.SECTION_IDLE_DURATION: lambda reading: _value(reading.idle),
    semconv.SECTION_FIRST: lambda reading: _by_section(dict.fromkeys(reading.first_time, 1)),
    semconv.PROGRESS_AGE: lambda reading: _value(reading.quiet),
}

FROM_LOGGED: Final[Mapping[Metric, Callable[[Logged], Values]]] = {
    semconv.SCALAR: lambda logged: [(value, {semconv.ATTR_SCALAR: name}) for name, value in logged.means.items()],
    semconv.SCALAR_NON_FINITE: lambda logged: [
        (count, {semconv.ATTR_SCALAR: name}) for name, count in logged.non_finite.items()
    ],
    semconv.SCALAR_STEP: lambda logged: _value(logged.step),
}

FROM_MAXIMA: Final[Mapping[Metric, Callable[[MaximaUpdate], Values]]] = {
    semconv.SECTION_LONGEST: lambda maxima: _by_section(maxima.longest),
    semconv.SECTION_FIRST_DURATION: lambda maxima: _by_section(maxima.first),
    semconv.SECTION_IDLE_LONGEST: lambda maxima: _value(maxima.idle_longest),
}

FROM_SPEED: Final[Mapping[Metric, Callable[[Speed], Values]]] = {
    semconv.WINDOW_ITERATION: lambda speed: _value(speed.window.iteration if speed.window is not None else None),
    semconv.WINDOW_STEPS: lambda speed: _value(speed.window.steps if speed.window is not None else None),
    semconv.WINDOW_SECTION_DURATION: lambda speed: _statistics(
        _sections(speed), semconv.ATTR_SECTION, ("median", "tail", "max", "mean")
    ),
    semconv.WINDOW_SECTION_CALLS: lambda speed: _calls(_sections(speed), semconv.ATTR_SECTION),
    semconv.STEP_PART: lambda speed: [(value, {semconv.ATTR_PART: str(part)}) for part, value in speed.parts.items()],
    semconv.COLLECTIVE_DURATION: lambda speed: _statistics(
        speed.collectives, semconv.ATTR_GROUP, ("busy", "exposed", "shortest")
    ),
    semconv.COLLECTIVE_CALLS: lambda speed: _calls(speed.collectives, semconv.ATTR_GROUP),
    semconv.OPERATION_DURATION: lambda speed: _statistics(
        speed.operations, semconv.ATTR_OPERATION, ("total", "shortest")
    ),
    semconv.OPERATION_SIZE: lambda speed: _statistics(
        speed.operations, semconv.ATTR_OPERATION, ("bytes", "largest", "bus")
    ),
    semconv.OPERATION_CALLS: lambda speed: _calls(speed.operations, semconv.ATTR_OPERATION),
    semconv.CPU_TIME: _cpu,
    semconv.KERNEL_DURATION: lambda speed: _statistics(
        speed.kernels, semconv.ATTR_KERNEL, ("min", "median", "tail", "max", "mean", "stddev")
    ),
    semconv.KERNEL_CALLS: lambda speed: _calls(speed.kernels, semconv.ATTR_KERNEL),
    semconv.KERNEL_SOURCE: _source,
    **{metric: functools.partial(_device, metric) for metric in semconv.DEVICE_METRICS},
}


class Instruments:
    """All instruments of one session. :meth:`refresh` precedes each collection, whose points are all of one moment.

    Without ``profiling`` there are no points about windows, kernels, CPU time and devices. Durations of finished
    sections are recorded every ``histogram_seconds``; 0: at each refresh.
    """

    def __init__(
        self,
        meter: Meter,
        recorder: Recorder,
        profiling: Profiling | None = None,
        histogram_seconds: float = 0.0,
        scalars: Scalars | None = None,
    ) -> None:
        self._recorder = recorder
        self._profiling = profiling
        self._histogram_interval = round(histogram_seconds * 1e9)
        # The first report has the durations, also on a machine that booted a minute ago.
        self._histogram_recorded_at = -self._histogram_interval
        self._unrecorded: list[SectionRun] = []
        self._reading: Reading | None = None
        self._maxima = DurationMaxima()
        self._maxima_update = MaximaUpdate()
        self._speed = Speed()
        self._scalars, self._logged = scalars, NOTHING
        sources: Sequence[tuple[Mapping[Metric, Callable[[Any], Values]], Callable[[], Any]]] = (
            (FROM_SLOTS, lambda: self._reading),
            (FROM_MAXIMA, lambda: self._maxima_update),
            (FROM_LOGGED, lambda: self._logged),
            (FROM_SPEED, lambda: self._speed),
        )
        for table, newest in sources:
            for metric, values in table.items():
                self._observe(meter, metric, functools.partial(_from, newest, values))
        self._observe(meter, semconv.TELEMETRY_DROPPED, self._dropped)
        duration = semconv.SECTION_DURATION
        self._duration = meter.create_histogram(duration.name, duration.unit, duration.meaning)

    def refresh(self) -> list[SectionRun]:
        """Read the slots, process the section runs finished since the last call, and return them."""
        recorder = self._recorder
        now = time.monotonic_ns()
        # Read before the ring is emptied: a section left in between is then in both, never in neither.
        reading = self._reading = read(recorder.slots, now)
        mark = self._profiling.mark() if self._profiling is not None else None
        runs, lost = recorder.take_finished()
        ending = reading is not None and reading.phase == PHASE_SHUT_DOWN
        self._record_durations(runs, now, ending=ending)
        ages = reading.open_sections.values() if reading is not None else ()
        self._maxima.add(
            runs,
            open_since=now - round(max(ages) * 1e9) if ages else None,
            now=now,
            first_step_at=recorder.words[FIRST_STEP_AT] or None,
            lost=lost,
            ended=ending,
        )
        self._maxima_update = self._maxima.update(now / 1e9, everything=ending)
        self._logged = self._scalars.take() if self._scalars is not None else NOTHING
        if self._profiling is not None and mark is not None:
            self._profiling.take(mark, runs, now / 1e9, ending=ending)
            self._speed = self._profiling.next(now / 1e9)
        return runs

    def more(self) -> bool:
        """Advance to the next window that can be reported now; it needs a collection of its own."""
        if self._profiling is None or not self._profiling.more():
            return False
        self._logged = NOTHING  # sent once
        self._speed = self._profiling.next(time.monotonic())
        return True

    def _record_durations(self, runs: Sequence[SectionRun], now: int, *, ending: bool) -> None:
        """Record durations when the interval has passed, at the end, and when too many are waiting."""
        self._unrecorded.extend(runs)
        due = now - self._histogram_recorded_at >= self._histogram_interval
        if not (due or ending or len(self._unrecorded) >= RING_LENGTH):
            return
        attributes = {run.section: {semconv.ATTR_SECTION: run.section} for run in self._unrecorded}
        for run in self._unrecorded:
            self._duration.record(run.duration_ns / 1e9, attributes[run.section])
        self._unrecorded.clear()
        self._histogram_recorded_at = now

    def _dropped(self) -> Values:
        return [(count, {semconv.ATTR_REASON: reason}) for reason, count in dict(self._recorder.dropped).items()]

    def _observe(self, meter: Meter, metric: Metric, values: Callable[[], Values]) -> None:
        def callback(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, attributes) for value, attributes in values()]

        create = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        create(metric.name, [callback], metric.unit, metric.meaning)
