from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rankwatch
from rankwatch.contract import env as environment
from rankwatch.contract.limits import RankLimits
from rankwatch.liveness.thread import INTERVAL, LivenessThread
from rankwatch.recording.recorder import Recorder
from rankwatch.recording.shared_slots import LIVENESS_TICK, Reading, Slots, read
from telemetry.receiver import Receiver


def age_of(recorder: Recorder, section: str) -> float:
    seen = read(recorder.slots)
    assert seen is not None
    return seen.open_sections[section]


def test_an_exceeded_limit_wakes_the_exporter_once_and_again_after_it_was_met(recorder: Recorder) -> None:
    calls: list[int] = []
    thread = LivenessThread(recorder, wake_exporter=lambda: calls.append(1), on_settings=lambda _: None)
    recorder.slots.write_settings(RankLimits({"save": 0.001}).to_settings())

    def overrun() -> None:
        with rankwatch.section("save"):
            wait_until(lambda: age_of(recorder, "save") > 0.001)
            assert thread.tick() <= INTERVAL
            thread.tick()
        thread.tick()

    overrun()
    assert calls == [1]
    overrun()
    assert calls == [1, 1]


def test_the_next_tick_is_due_at_the_next_limit(recorder: Recorder) -> None:
    thread = LivenessThread(recorder, wake_exporter=lambda: None, on_settings=lambda _: None)
    assert thread.tick() == INTERVAL
    recorder.slots.write_settings(RankLimits({"save": 0.1}).to_settings())
    with rankwatch.section("save"):
        assert thread.tick() < 0.11


def test_a_learned_limit_measures_the_time_without_progress(recorder: Recorder) -> None:
    calls: list[int] = []
    thread = LivenessThread(recorder, wake_exporter=lambda: calls.append(1), on_settings=lambda _: None)
    recorder.slots.write_settings(RankLimits(learned={"load": 0.05}, first_time=3600).to_settings())
    with rankwatch.section("load"):  # for the first time: the learned limit does not count yet
        wait_until(lambda: age_of(recorder, "load") > 0.1)
        assert thread.tick() == INTERVAL
    assert calls == []
    with rankwatch.section("load"):
        wait_until(lambda: age_of(recorder, "load") > 0.1)
        rankwatch.progress()
        assert thread.tick() < 0.06, "it moved: the limit is ahead again"
        assert calls == []
        wait_until(lambda: age_of(recorder, "load") > 0.25)
        thread.tick()
        assert calls == [1]


def test_the_first_step_of_a_process_wakes_the_exporter(recorder: Recorder) -> None:
    calls: list[int] = []
    thread = LivenessThread(recorder, wake_exporter=lambda: calls.append(1), on_settings=lambda _: None)
    thread.tick()
    for _ in range(2):
        with rankwatch.step():
            pass
        thread.tick()
    assert calls == [1]


def test_settings_are_passed_on_once(recorder: Recorder) -> None:
    handed: list[object] = []
    thread = LivenessThread(recorder, wake_exporter=lambda: None, on_settings=handed.append)
    recorder.slots.write_settings({"export_interval": 5})
    thread.tick()
    thread.tick()
    recorder.slots.write_settings({"export_interval": 6})
    thread.tick()
    assert handed == [{"export_interval": 5}, {"export_interval": 6}]


def test_the_thread_beats_and_survives_settings_that_are_refused(recorder: Recorder) -> None:
    recorder.slots.write_settings({"x": 1})

    def refuse(settings: dict[str, object]) -> None:
        raise ValueError(settings)

    thread = LivenessThread(recorder, wake_exporter=lambda: None, on_settings=refuse)
    recorder.words[LIVENESS_TICK] = 0
    thread.start()
    try:
        wait_until(lambda: recorder.words[LIVENESS_TICK] and recorder.dropped.get("pulse_error"))
    finally:
        thread.stop()


def test_a_passed_limit_is_reported_at_once_not_at_the_next_interval(receiver: Receiver, tmp_path: Path) -> None:
    os.environ[environment.SLOTS_DIR] = str(tmp_path)
    try:
        rankwatch.init(monitor=receiver.url, job_id="j", export_interval=3600)
    finally:
        del os.environ[environment.SLOTS_DIR]
    receiver.wait_for_report()
    Slots.open(tmp_path / "0.slots").write_settings(RankLimits({"step": 0.5}).to_settings())
    with rankwatch.step():
        report = receiver.wait_for_report(lambda r: r.value("rankwatch.section.open.duration", "step"))
    assert 0.5 < report.value("rankwatch.section.open.duration", "step") < 5.0


def test_a_new_interval_counts_at_once(receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.SLOTS_DIR, str(tmp_path))
    rankwatch.init(monitor=receiver.url, job_id="j", export_interval=3600)
    receiver.wait_for_report()
    Slots.open(tmp_path / "0.slots").write_settings({"export_interval": 0.05})
    receiver.wait_for(lambda: len(receiver.reports) > 5)


def test_a_held_gil_stops_the_pulse_and_a_sleeping_main_thread_does_not(tmp_path: Path) -> None:
    for kind, beats_on in (("gil", False), ("hang", True)):
        folder = tmp_path / kind
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import rankwatch; from rankwatch import faults; rankwatch.init()\n"
                "with rankwatch.step(): faults.maybe_inject(0)",
            ],
            env=os.environ | {environment.SLOTS_DIR: str(folder), "RANKWATCH_INJECT": f"rank=0,step=0,kind={kind}"},
        )
        try:
            wait_until(lambda folder=folder: (folder / "0.slots").exists())
            wait_until(lambda folder=folder: _age(folder, lambda r: r.open_sections.get("step", 0.0)) > 0.1)
            slots = Slots.open(folder / "0.slots")
            if beats_on:
                before = slots.words[LIVENESS_TICK]
                wait_until(
                    lambda slots=slots, before=before: slots.words[LIVENESS_TICK] > before + int(2 * INTERVAL * 1e9)
                )
            else:
                wait_until(lambda folder=folder: _age(folder, lambda r: r.pulse_age) > 6 * INTERVAL)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()


def _age(folder: Path, what: Callable[[Reading], float]) -> float:
    try:
        seen = read(Slots.open(folder / "0.slots"))
    except (ValueError, OSError):
        return 0.0
    return what(seen) if seen else 0.0


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < end
        tick.wait(0.01)
