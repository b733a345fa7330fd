from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader

import rankwatch
from rankwatch.contract import semconv
from rankwatch.export.instruments import FROM_LOGGED, FROM_MAXIMA, FROM_SLOTS, FROM_SPEED, Instruments
from rankwatch.recording.recorder import DROP_RING, RING_LENGTH, Recorder
from rankwatch.recording.section_statistics import REPEAT_SECONDS
from rankwatch.recording.shared_slots import FIRST_STEP_AT, PHASE, PHASE_SHUT_DOWN

Reported = dict[str, dict[str, float]]
"""Metric -> section (empty: none) -> value, of one collection."""


@pytest.fixture
def reported(recorder: Recorder) -> Callable[[], Reported]:
    """Refreshes and collects, as the exporter does for each report."""
    reader = InMemoryMetricReader()
    instruments = Instruments(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"), recorder)

    def collect() -> Reported:
        instruments.refresh()
        found: Reported = {}
        data: Any = reader.get_metrics_data()
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.data.data_points:
                section = point.attributes.get(semconv.ATTR_SECTION, "")
                found.setdefault(metric.name, {})[section] = getattr(point, "value", None)
        return found

    return collect


def test_every_metric_of_the_contract_has_an_instrument() -> None:
    made_otherwise = {semconv.SECTION_DURATION, semconv.TELEMETRY_DROPPED}
    observed = set(FROM_SLOTS) | set(FROM_MAXIMA) | set(FROM_SPEED) | set(FROM_LOGGED)
    assert observed | made_otherwise == set(semconv.METRICS)


def test_a_section_open_for_the_first_time_is_reported_while_it_is(reported: Callable[[], Reported]) -> None:
    with rankwatch.step(), rankwatch.section("compile"):
        assert reported()[semconv.SECTION_FIRST.name] == {"step": 1, "compile": 1}
    with rankwatch.step():
        assert semconv.SECTION_FIRST.name not in reported()


def test_the_age_of_the_last_progress_is_reported_once_there_was_one(reported: Callable[[], Reported]) -> None:
    assert semconv.PROGRESS_AGE.name not in reported()
    rankwatch.progress()
    assert 0 <= reported()[semconv.PROGRESS_AGE.name][""] < 60


def test_the_longest_times_are_reported_when_they_grow_once_a_minute_and_at_the_end(
    recorder: Recorder, reported: Callable[[], Reported], monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = {metric.name for metric in FROM_MAXIMA}
    with rankwatch.step():
        pass
    first = reported()
    assert first[semconv.SECTION_FIRST_DURATION.name].keys() == {"step"}
    assert semconv.SECTION_LONGEST.name not in first, "the first run is none of the others"
    assert not learned & reported().keys()
    # Put straight into the ring: a step of 7 s that begins 3 s after the first one was completed.
    begun = recorder.words[FIRST_STEP_AT] + 3 * 10**9
    step_id = recorder.ids["step"]
    recorder.finished.append((step_id, begun, begun + 7 * 10**9, 1))
    recorder.finished.append((step_id, begun + 9 * 10**9, begun + 10 * 10**9, 2))
    grown = reported()
    assert grown[semconv.SECTION_LONGEST.name] == {"step": 7.0}
    assert grown[semconv.SECTION_IDLE_LONGEST.name][""] == 3.0
    assert semconv.SECTION_FIRST_DURATION.name not in grown
    assert not learned & reported().keys()
    later = time.monotonic_ns() + round(REPEAT_SECONDS * 1e9)
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic_ns", lambda: later)
        assert learned <= reported().keys()
    assert not learned & reported().keys()
    recorder.words[PHASE] = PHASE_SHUT_DOWN
    assert learned <= reported().keys()


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


def test_durations_of_a_very_large_job_are_reported_once_in_a_while_and_all_at_the_end(recorder: Recorder) -> None:
    reader = InMemoryMetricReader(preferred_temporality={Histogram: AggregationTemporality.DELTA})
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("test")
    instruments = Instruments(meter, recorder, histogram_seconds=3600.0)

    def counted() -> int:
        """Steps whose duration is in this report."""
        instruments.refresh()
        data: Any = reader.get_metrics_data()
        found = [
            m for m in data.resource_metrics[0].scope_metrics[0].metrics if m.name == semconv.SECTION_DURATION.name
        ]
        return sum(point.count for metric in found for point in metric.data.data_points)

    counts = []
    for steps in (1, 2, 3):
        for _ in range(steps):
            with rankwatch.step():
                pass
        counts.append(counted())
    recorder.words[PHASE] = PHASE_SHUT_DOWN
    assert [*counts, counted()] == [1, 0, 0, 5]
