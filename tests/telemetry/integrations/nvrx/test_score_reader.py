from __future__ import annotations

import logging
import threading

import pytest

from rankwatch.integrations.nvrx.score_reader import ScoreReader
from rankwatch.wire import environment
from support.http_receiver import HttpReceiver
from support.waiting import wait_for


def test_trouble_is_said_once_and_nobody_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    away = HttpReceiver()
    url = away.url
    away.close()
    monkeypatch.setenv(environment.MONITOR_URL, url)
    monkeypatch.setenv(environment.JOB_ID, "a job")
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
