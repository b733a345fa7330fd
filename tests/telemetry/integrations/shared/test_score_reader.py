from __future__ import annotations

import logging
import threading

import pytest

from rankwatch.contract import env
from rankwatch.integrations.shared.score_reader import ScoreReader
from support.http_receiver import HttpReceiver
from support.waiting import wait_for


def test_trouble_is_reported_once_and_nothing_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    away = HttpReceiver()
    url = away.url
    away.close()
    monkeypatch.setenv(env.MONITOR_URL, url)
    monkeypatch.setenv(env.JOB_ID, "a job")
    reader = ScoreReader(0.01)
    reader.start()
    assert reader.fetch(5.0) is None
    assert reader.fetch(5.0) is None
    assert reader.newest() is None
    reader.stop()

    def over() -> bool:
        return all(thread.name != "rankwatch-scores" for thread in threading.enumerate())

    wait_for(over, "the thread has ended")
    assert len([words for words in caplog.messages if "no monitor answers" in words]) == 1


def test_without_a_monitor_nothing_is_started() -> None:
    reader = ScoreReader(1.0)
    reader.start()
    assert reader.fetch(5.0) is None
    reader.stop()


def test_a_monitor_that_is_known_to_be_away_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    silent = HttpReceiver()
    silent.answers.status = 500
    monkeypatch.setenv(env.MONITOR_URL, silent.url)
    monkeypatch.setenv(env.JOB_ID, "a job")
    reader = ScoreReader(3600.0)
    reader.start()
    wait_for(lambda: caplog.messages, "it is known")
    silent.answers.status = None  # from now on it answers nothing at all
    try:
        assert reader.fetch(1e6) is None, "which would wait for ever"
    finally:
        reader.stop()
        silent.released.set()
        silent.close()


def test_switched_off_nothing_is_asked_or_printed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(env.MONITOR_URL, "http://127.0.0.1:9")
    monkeypatch.setenv(env.JOB_ID, "a job")
    monkeypatch.setenv("RANKWATCH_DISABLED", "1")
    before = set(threading.enumerate())  # a reader of another test may not have ended yet
    reader = ScoreReader(0.01)
    reader.start()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "rankwatch-scores"]
    assert reader.fetch(5.0) is None
    assert caplog.messages == []
