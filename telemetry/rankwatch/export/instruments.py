"""The metrics of the contract as OpenTelemetry instruments over the slots. Imported on the exporter's thread only."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from rankwatch.contract import semconv
from rankwatch.contract.semconv import Metric
from rankwatch.export.observed import News, Observed, Run
from rankwatch.export.section_runs import Run as WindowRun
from rankwatch.profiling.profiler import Profiling, Speed
from rankwatch.recording.recorder import DROP_RING, RING_LENGTH, Finished, Recorder
from rankwatch.recording.shared_slots import FINISHED, FIRST_STEP_AT, PHASE_SHUT_DOWN, Reading, read

Values = Iterable[tuple[float | int, Mapping[str, str]]]


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
    told = zip(("used", "waited"), speed.cpu or (), strict=False)
    return [(value, {semconv.ATTR_STATISTIC: statistic}) for statistic, value in told]


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
    semconv.FIRST_ITERATION: lambda reading: _value(reading.first_iteration),
    semconv.FIRST_ITERATION_AGE: lambda reading: _value(reading.first_iteration_age),
    semconv.SESSION_ENDED: lambda reading: _value(1 if reading.phase == PHASE_SHUT_DOWN else None),
    semconv.SECTION_OPEN_DURATION: lambda reading: _by_section(reading.open_sections),
    semconv.SECTION_IDLE_DURATION: lambda reading: _value(reading.idle),
    semconv.SECTION_FIRST: lambda reading: _by_section(dict.fromkeys(reading.first_time, 1)),
    semconv.PROGRESS_AGE: lambda reading: _value(reading.quiet),
}

FROM_NEWS: Final[Mapping[Metric, Callable[[News], Values]]] = {
    semconv.SECTION_LONGEST: lambda news: _by_section(news.longest),
    semconv.SECTION_FIRST_DURATION: lambda news: _by_section(news.first),
    semconv.SECTION_IDLE_LONGEST: lambda news: _value(news.idle_longest),
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
    semconv.CPU_TIME: _cpu,
    semconv.KERNEL_DURATION: lambda speed: _statistics(
        speed.kernels, semconv.ATTR_KERNEL, ("min", "median", "tail", "max", "mean", "stddev")
    ),
    semconv.KERNEL_CALLS: lambda speed: _calls(speed.kernels, semconv.ATTR_KERNEL),
    semconv.KERNEL_SOURCE: _source,
    **{metric: functools.partial(_device, metric) for metric in semconv.DEVICE_METRICS},
}


class Instruments:
    """All instruments of one session. :meth:`refresh` before each collection; all points of it are of one moment.

    ``profiling`` is asked for windows and all else about speed; without it none of that is told. Durations of finished
    sections are told every ``histogram_seconds``, 0 being each time.
    """

    def __init__(
        self, meter: Meter, recorder: Recorder, profiling: Profiling | None = None, histogram_seconds: float = 0.0
    ) -> None:
        self._untold: list[tuple[float, dict[str, str]]] = []
        self._tell_every = round(histogram_seconds * 1e9)
        self._told_at = -self._tell_every  # the first report has them, also on a machine that booted a minute ago
        self._recorder = recorder
        self._profiling = profiling
        self._speed = Speed()
        self._reading: Reading | None = None
        self._observed = Observed()
        self._news = News()
        self._drained = 0
        self._lost = 0
        for metric, values in FROM_SLOTS.items():
            self._observe(meter, metric, functools.partial(self._read, values))
        for metric, told in FROM_NEWS.items():
            self._observe(meter, metric, functools.partial(self._tell, told))
        for metric, of_speed in FROM_SPEED.items():
            self._observe(meter, metric, functools.partial(self._tell_speed, of_speed))
        self._observe(meter, semconv.TELEMETRY_DROPPED, self._dropped)
        duration = semconv.SECTION_DURATION
        self._duration = meter.create_histogram(duration.name, duration.unit, duration.meaning)

    def refresh(self) -> list[Finished]:
        """Read the slots, record the sections finished since the last call, and return them."""
        recorder = self._recorder
        now = time.monotonic_ns()
        # Before the ring is emptied: a section that is left in between is then in both, and never in neither.
        self._reading = read(recorder.slots, now)
        mark = self._profiling.mark() if self._profiling is not None else None
        finished, lost = self._drain()
        attributes: dict[int, dict[str, str]] = {}
        for section in finished:
            if section.section_id not in attributes:
                attributes[section.section_id] = {semconv.ATTR_SECTION: recorder.slots.name(section.section_id)}
            self._untold.append((section.duration_ns / 1e9, attributes[section.section_id]))
        self._tell_finished(now)
        self._learn(self._reading, finished, attributes, now, lost=lost)
        if self._profiling is not None and mark is not None:
            runs = (
                WindowRun(
                    attributes[f.section_id][semconv.ATTR_SECTION],
                    f.start_ns + f.duration_ns,
                    f.duration_ns,
                    f.iteration,
                    f.first,
                )
                for f in finished
            )
            ending = self._reading is not None and self._reading.phase == PHASE_SHUT_DOWN
            self._profiling.take(mark, runs, now / 1e9, ending=ending)
            self._speed = self._profiling.next(now / 1e9)
        return finished

    def _tell_finished(self, now: int) -> None:
        """Record the durations that are to be in the next report; those of the end, and too many, wait for none."""
        ending = self._reading is not None and self._reading.phase == PHASE_SHUT_DOWN
        if not ending and len(self._untold) < RING_LENGTH and now - self._told_at < self._tell_every:
            return
        for seconds, attributes in self._untold:
            self._duration.record(seconds, attributes)
        self._untold.clear()
        self._told_at = now

    def more(self) -> bool:
        """Turn to the next window when another one can be told now; it wants a collection of its own."""
        if self._profiling is None or not self._profiling.more():
            return False
        self._speed = self._profiling.next(time.monotonic())
        return True

    def _learn(
        self,
        reading: Reading | None,
        finished: Sequence[Finished],
        attributes: Mapping[int, Mapping[str, str]],
        now: int,
        *,
        lost: bool,
    ) -> None:
        runs = [
            Run(attributes[f.section_id][semconv.ATTR_SECTION], f.start_ns, f.start_ns + f.duration_ns, f.first)
            for f in finished
        ]
        ages = reading.open_sections.values() if reading is not None else ()
        open_since = now - round(max(ages) * 1e9) if ages else None
        first_step_at = self._recorder.words[FIRST_STEP_AT] or None
        ending = reading is not None and reading.phase == PHASE_SHUT_DOWN
        self._observed.take(runs, open_since=open_since, now=now, first_step_at=first_step_at, lost=lost, ended=ending)
        self._news = self._observed.news(now / 1e9, everything=ending)

    def _drain(self) -> tuple[list[Finished], bool]:
        """Empty the ring and say whether some were lost.

        A section counts as finished only after it is in the ring: what is then missing was overwritten.
        """
        recorder = self._recorder
        written, ring = recorder.words[FINISHED], recorder.finished
        finished = [Finished(*ring.popleft()) for _ in range(len(ring))]
        self._drained += len(finished)
        lost = written - self._drained - self._lost
        if lost > 0:
            self._lost += lost
            recorder.drop(DROP_RING, lost)
        # A full ring may have been overwritten since the count was read.
        return finished, lost > 0 or len(finished) >= RING_LENGTH

    def _read(self, values: Callable[[Reading], Values]) -> Values:
        return values(self._reading) if self._reading else ()

    def _tell(self, told: Callable[[News], Values]) -> Values:
        return told(self._news)

    def _tell_speed(self, told: Callable[[Speed], Values]) -> Values:
        return told(self._speed)

    def _dropped(self) -> Values:
        return [(count, {semconv.ATTR_REASON: reason}) for reason, count in dict(self._recorder.dropped).items()]

    def _observe(self, meter: Meter, metric: Metric, values: Callable[[], Values]) -> None:
        def callback(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, attributes) for value, attributes in values()]

        create = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        create(metric.name, [callback], metric.unit, metric.meaning)
