from __future__ import annotations

import threading
import time

import pytest

from rankwatch.export.exporter import DROP_EXPORT_ERROR, Exporter
from rankwatch.recording.recorder import Recorder
from rankwatch.recording.shared_slots import REPORT_DUE


class Reports:
    """Counts; fails while instructed to."""

    def __init__(self) -> None:
        self.made = threading.Semaphore(0)
        self.closed = threading.Event()
        self.resent = threading.Semaphore(0)
        self.failing = False
        self.delivered = True
        self.retry_after = 0.0

    def report(self) -> bool:
        self.made.release()
        if self.failing:
            raise RuntimeError("no")
        return self.delivered

    def resend(self) -> bool:
        self.resent.release()
        return self.delivered

    def close(self) -> None:
        self.closed.set()


def test_a_report_that_was_delivered_states_by_when_the_next_one_is_due(recorder: Recorder) -> None:
    reports = Reports()
    reports.delivered = False
    exporter = Exporter(lambda: reports, recorder, 100.0)
    exporter.start()
    assert reports.made.acquire(timeout=60)
    first = recorder.words[REPORT_DUE] / 1e9
    assert 190 < first - time.monotonic() < 210
    reports.delivered = True
    exporter.wake()
    exporter.stop(10)
    assert recorder.words[REPORT_DUE] / 1e9 > first


def test_what_the_receiver_asked_for_again_is_sent_again_before_the_next_report_is_due(recorder: Recorder) -> None:
    reports = Reports()
    reports.delivered, reports.retry_after = False, 0.05
    exporter = Exporter(lambda: reports, recorder, 3600.0)
    exporter.start()
    assert reports.made.acquire(timeout=60)
    for _ in range(3):
        assert reports.resent.acquire(timeout=60), "for as long as it asks"
    reports.delivered, reports.retry_after = True, 0.0
    exporter.wake()
    assert reports.made.acquire(timeout=60), "a report that is due is made, with what waits"
    exporter.stop(10)


def test_it_reports_at_once_when_woken_and_once_more_at_the_end(recorder: Recorder) -> None:
    reports = Reports()
    exporter = Exporter(lambda: reports, recorder, 3600.0)
    exporter.start()
    assert reports.made.acquire(timeout=60)
    exporter.wake()
    assert reports.made.acquire(timeout=60)
    assert not reports.made.acquire(blocking=False)
    exporter.stop(10)
    assert reports.made.acquire(blocking=False)
    assert reports.closed.is_set()


def test_the_end_of_training_does_not_wait_for_a_receiver_that_does_not_answer(recorder: Recorder) -> None:
    gate = threading.Event()

    class Stuck(Reports):
        def report(self) -> bool:
            super().report()
            return gate.wait(60)

    reports = Stuck()
    exporter = Exporter(lambda: reports, recorder, 3600.0)
    exporter.start()
    assert reports.made.acquire(timeout=60)
    training = threading.Thread(target=exporter.stop, args=(0.01,), daemon=True)
    training.start()
    training.join(30)
    ended = not training.is_alive()
    gate.set()
    assert reports.closed.wait(60)
    assert ended


def test_a_failing_report_is_reported_once_counted_and_the_next_one_made(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    reports = Reports()
    reports.failing = True
    exporter = Exporter(lambda: reports, recorder, 0.05)
    exporter.start()
    for _ in range(3):
        assert reports.made.acquire(timeout=60)
    reports.failing = False
    exporter.stop(10)
    assert recorder.dropped[DROP_EXPORT_ERROR] >= 2
    assert caplog.text.count("a report failed") == 1


def test_what_cannot_be_built_is_reported_and_ends_the_thread(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> Reports:
        raise ModuleNotFoundError("No module named 'opentelemetry'")

    exporter = Exporter(missing, recorder, 1.0)
    exporter.start()
    exporter.stop(10)
    assert "telemetry cannot be exported: ModuleNotFoundError: No module named 'opentelemetry'" in caplog.text


def test_settling_waits_for_the_imports_and_not_longer_than_it_may(recorder: Recorder) -> None:
    gate = threading.Event()

    def slow() -> Reports:
        gate.wait(60)
        return Reports()

    exporter = Exporter(slow, recorder, 1.0)
    exporter.settle(10)  # not started: nothing to wait for
    exporter.start()
    begin = time.monotonic()
    exporter.settle(0.05)
    assert 0.04 < time.monotonic() - begin < 30
    gate.set()
    exporter.settle(10)
    exporter.stop(10)


def test_all_forks_together_wait_no_longer_than_one_may(recorder: Recorder) -> None:
    """A driver that hangs in the thread delays one worker of a data loader, not each of them."""
    gate = threading.Event()

    def hangs() -> Reports:
        gate.wait(60)
        return Reports()

    exporter = Exporter(hangs, recorder, 1.0)
    exporter.start()
    exporter.settle(0.01)
    begin = time.monotonic()
    exporter.settle(30)
    assert time.monotonic() - begin < 25
    gate.set()
    exporter.stop(10)


def test_a_fork_by_the_thread_itself_does_not_wait(recorder: Recorder) -> None:
    waited = []

    def forks() -> Reports:
        begin = time.monotonic()
        exporter.settle(30)
        waited.append(time.monotonic() - begin)
        return Reports()

    exporter = Exporter(forks, recorder, 1.0)
    exporter.start()
    exporter.stop(10)
    assert len(waited) == 1
    assert waited[0] < 5


def test_a_senseless_interval_is_reported_and_ignored(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    exporter = Exporter(Reports, recorder, 1.0)
    exporter.configure({"export_interval": -3})
    exporter.configure({"heartbeat_timeout": 30})
    assert "export_interval must be a number of seconds" in caplog.text
    assert exporter._interval == 1.0
    exporter.configure({"export_interval": 0.0001})
    assert exporter._interval == 0.05
