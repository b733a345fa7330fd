from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from rankwatch.contract import ft_state
from rankwatch.contract.ft_state import FILE_NAME, LearnedTimeouts
from rankwatch.contract.policy import Policy
from rankwatch.integrations.shared import state_file
from rankwatch.integrations.shared.state_file import StateFile, as_policy, mean_with_earlier
from support.waiting import wait_for

LOG = logging.getLogger("test_state_file")
LEARNED = LearnedTimeouts({"step": 12.0, "setup": 300.0}, 60.0, 900.0, 100.0)
CONTENT = ft_state.write(LEARNED, {}, None)


def test_what_is_written_is_read_again_and_its_folder_is_made(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "new" / "folder" / FILE_NAME, LOG)
    assert file.read() is None
    assert file.learned() is None
    assert file.write(ft_state.write(LearnedTimeouts({"step": 1.0}), {}, None), seconds=60)
    assert file.write(CONTENT, seconds=60)
    assert file.read() == CONTENT
    assert file.learned() == LEARNED
    assert [path.name for path in file.path.parent.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("content", ["{", "[1]", '{"weights": []}'])
def test_a_file_that_cannot_be_used_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str) -> None:
    file = StateFile(tmp_path / FILE_NAME, LOG)
    file.path.write_text(content)
    assert file.read() is None
    assert file.learned() is None
    assert all("cannot be used, timeouts are calculated again" in words for words in caplog.messages)
    assert len(caplog.messages) == 2


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "no folder").touch()
    assert not StateFile(tmp_path / "no folder" / FILE_NAME, LOG).write({}, seconds=60)
    assert "cannot be written to" in caplog.text


def test_a_file_system_that_hangs_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "FILE_SECONDS", 0.05)
    file = StateFile(tmp_path / FILE_NAME, LOG)
    stuck, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(state_file, "read_file", lambda *_: go_on.wait(60))
    replace = os.replace

    def hang(*paths: Any) -> None:
        stuck.set()
        assert go_on.wait(60)
        replace(*paths)

    monkeypatch.setattr(os, "replace", hang)
    try:
        assert file.read() is None
        assert "takes longer than 0.05 s" in caplog.text
        before = threading.active_count()
        assert not any(file.write(CONTENT, seconds=0.01) for _ in range(5))
        assert stuck.wait(60)
        assert threading.active_count() <= before + 1, "one thread writes, however often it is asked to"
    finally:
        go_on.set()
    wait_for(lambda: threading.active_count() <= before - 1 or file.path.is_file(), "it goes on when it can")


def test_what_was_learned_is_a_policy() -> None:
    policy = Policy().changed(as_policy(LEARNED))
    assert policy.section_timeouts == {"step": 12.0, "setup": 300.0}
    assert (policy.out_of_section_timeout, policy.initial_heartbeat_timeout, policy.heartbeat_timeout) == (60, 900, 100)
    assert as_policy(LearnedTimeouts({"step": 3.0})) == {"section_timeouts": {"step": 3.0}}
    assert as_policy(LearnedTimeouts()) == {}


def test_an_earlier_limit_counts_half() -> None:
    assert (mean_with_earlier(10.0, None), mean_with_earlier(10.0, 20.0)) == (10.0, 15.0)


def test_the_layout_is_json_that_an_operator_can_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path / FILE_NAME, LOG)
    file.write(CONTENT, seconds=60)
    assert json.loads(file.path.read_text()) == CONTENT
    assert len(file.path.read_text().splitlines()) > 5
