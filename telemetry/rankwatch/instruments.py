"""The metrics of the contract as OpenTelemetry instruments over the slots. Imported on the exporter's thread only."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from rankwatch.observed import News, Observed, Run
from rankwatch.recorder import DROP_RING, RING_LENGTH, Finished, Recorder
from rankwatch.slots import FINISHED, FIRST_STEP_AT, PHASE_SHUT_DOWN, Reading, read
from rankwatch.wire import names
from rankwatch.wire.names import Metric

Values = Iterable[tuple[float | int, Mapping[str, str]]]


def _value(value: float | int | None) -> Values:
    return () if value is None else ((value, {}),)


def _by_section(values: Mapping[str, float]) -> Values:
    return [(value, {names.ATTR_SECTION: name}) for name, value in values.items()]


FROM_SLOTS: Final[Mapping[Metric, Callable[[Reading], Values]]] = {
    names.HEARTBEATS: lambda reading: _value(reading.beats),
    names.HEARTBEAT_AGE: lambda reading: _value(reading.heartbeat_age),
    names.ITERATION: lambda reading: _value(reading.iteration),
    names.PROGRESS: lambda reading: _value(reading.progress),
    names.FIRST_ITERATION: lambda reading: _value(reading.first_iteration),
    names.FIRST_ITERATION_AGE: lambda reading: _value(reading.first_iteration_age),
    names.SESSION_ENDED: lambda reading: _value(1 if reading.phase == PHASE_SHUT_DOWN else None),
    names.SECTION_OPEN_DURATION: lambda reading: _by_section(reading.open_sections),
    names.SECTION_IDLE_DURATION: lambda reading: _value(reading.idle),
    names.SECTION_FIRST: lambda reading: _by_section(dict.fromkeys(reading.first_time, 1)),
    names.PROGRESS_AGE: lambda reading: _value(reading.quiet),
}

FROM_NEWS: Final[Mapping[Metric, Callable[[News], Values]]] = {
    names.SECTION_LONGEST: lambda news: _by_section(news.longest),
    names.SECTION_FIRST_DURATION: lambda news: _by_section(news.first),
    names.SECTION_IDLE_LONGEST: lambda news: _value(news.idle_longest),
}


class Instruments:
    """All instruments of one session. :meth:`refresh` before each collection; all points of it are of one moment."""

    def __init__(self, meter: Meter, recorder: Recorder) -> None:
        self._recorder = recorder
        self._reading: Reading | None = None
        self._observed = Observed()
        self._news = News()
        self._drained = 0
        self._lost = 0
        for metric, values in FROM_SLOTS.items():
            self._observe(meter, metric, functools.partial(self._read, values))
        for metric, told in FROM_NEWS.items():
            self._observe(meter, metric, functools.partial(self._tell, told))
        self._observe(meter, names.TELEMETRY_DROPPED, self._dropped)
        duration = names.SECTION_DURATION
        self._duration = meter.create_histogram(duration.name, duration.unit, duration.meaning)

    def refresh(self) -> list[Finished]:
        """Read the slots, record the sections finished since the last call, and return them."""
        recorder = self._recorder
        now = time.monotonic_ns()
        # Before the ring is emptied: a section that is left in between is then in both, and never in neither.
        self._reading = read(recorder.slots, now)
        finished, lost = self._drain()
        attributes: dict[int, dict[str, str]] = {}
        for section in finished:
            if section.section_id not in attributes:
                attributes[section.section_id] = {names.ATTR_SECTION: recorder.slots.name(section.section_id)}
            self._duration.record(section.duration_ns / 1e9, attributes[section.section_id])
        self._learn(self._reading, finished, attributes, now, lost=lost)
        return finished

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
            Run(attributes[f.section_id][names.ATTR_SECTION], f.start_ns, f.start_ns + f.duration_ns, f.first)
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

    def _dropped(self) -> Values:
        return [(count, {names.ATTR_REASON: reason}) for reason, count in dict(self._recorder.dropped).items()]

    def _observe(self, meter: Meter, metric: Metric, values: Callable[[], Values]) -> None:
        def callback(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, attributes) for value, attributes in values()]

        create = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        create(metric.name, [callback], metric.unit, metric.meaning)
