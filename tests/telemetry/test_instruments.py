from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import rankwatch
from rankwatch.instruments import FROM_SLOTS, Instruments
from rankwatch.recorder import DROP_RING, RING_LENGTH, Recorder
from rankwatch.wire import names


def test_every_metric_of_the_contract_has_an_instrument() -> None:
    made_otherwise = {names.SECTION_DURATION, names.TELEMETRY_DROPPED}
    assert set(FROM_SLOTS) | made_otherwise == set(names.METRICS)


def test_sections_that_the_ring_could_not_hold_are_counted_once(recorder: Recorder) -> None:
    reader = InMemoryMetricReader()
    instruments = Instruments(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"), recorder)
    for _ in range(RING_LENGTH + 100):
        with rankwatch.section("fast"):
            pass
    assert len(instruments.refresh()) == RING_LENGTH
    assert recorder.dropped == {DROP_RING: 100}
    with rankwatch.section("fast"):
        pass
    assert len(instruments.refresh()) == 1
    assert recorder.dropped == {DROP_RING: 100}
