"""The metrics of the contract as OpenTelemetry instruments over the slots. Imported on the exporter's thread only."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from rankwatch.recorder import DROP_RING, Finished, Recorder
from rankwatch.slots import FINISHED, PHASE_SHUT_DOWN, Reading, read
from rankwatch.wire import names
from rankwatch.wire.names import Metric

Values = Iterable[tuple[float | int, Mapping[str, str]]]


def _value(value: float | int | None) -> Values:
    return () if value is None else ((value, {}),)


def _open_sections(reading: Reading) -> Values:
    return [(age, {names.ATTR_SECTION: name}) for name, age in reading.open_sections.items()]


FROM_SLOTS: Final[Mapping[Metric, Callable[[Reading], Values]]] = {
    names.HEARTBEATS: lambda reading: _value(reading.beats),
    names.HEARTBEAT_AGE: lambda reading: _value(reading.heartbeat_age),
    names.ITERATION: lambda reading: _value(reading.iteration),
    names.PROGRESS: lambda reading: _value(reading.progress),
    names.FIRST_ITERATION: lambda reading: _value(reading.first_iteration),
    names.FIRST_ITERATION_AGE: lambda reading: _value(reading.first_iteration_age),
    names.SESSION_ENDED: lambda reading: _value(1 if reading.phase == PHASE_SHUT_DOWN else None),
    names.SECTION_OPEN_DURATION: _open_sections,
    names.SECTION_IDLE_DURATION: lambda reading: _value(reading.idle),
}


class Instruments:
    """All instruments of one session. :meth:`refresh` before each collection; all points of it are of one moment."""

    def __init__(self, meter: Meter, recorder: Recorder) -> None:
        self._recorder = recorder
        self._reading: Reading | None = None
        self._drained = 0
        self._lost = 0
        for metric, values in FROM_SLOTS.items():
            self._observe(meter, metric, functools.partial(self._read, values))
        self._observe(meter, names.TELEMETRY_DROPPED, self._dropped)
        duration = names.SECTION_DURATION
        self._duration = meter.create_histogram(duration.name, duration.unit, duration.meaning)

    def refresh(self) -> list[Finished]:
        """Read the slots, record the sections finished since the last call, and return them."""
        recorder = self._recorder
        self._reading = read(recorder.slots)
        finished = self._drain()
        attributes: dict[int, dict[str, str]] = {}
        for section in finished:
            if section.section_id not in attributes:
                attributes[section.section_id] = {names.ATTR_SECTION: recorder.slots.name(section.section_id)}
            self._duration.record(section.duration_ns / 1e9, attributes[section.section_id])
        return finished

    def _drain(self) -> list[Finished]:
        """Empty the ring. It counts as finished only after it is in the ring: what is then missing was overwritten."""
        recorder = self._recorder
        written, ring = recorder.words[FINISHED], recorder.finished
        finished = [Finished(*ring.popleft()) for _ in range(len(ring))]
        self._drained += len(finished)
        lost = written - self._drained - self._lost
        if lost > 0:
            self._lost += lost
            recorder.drop(DROP_RING, lost)
        return finished

    def _read(self, values: Callable[[Reading], Values]) -> Values:
        return values(self._reading) if self._reading else ()

    def _dropped(self) -> Values:
        return [(count, {names.ATTR_REASON: reason}) for reason, count in dict(self._recorder.dropped).items()]

    def _observe(self, meter: Meter, metric: Metric, values: Callable[[], Values]) -> None:
        def callback(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, attributes) for value, attributes in values()]

        create = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        create(metric.name, [callback], metric.unit, metric.meaning)
