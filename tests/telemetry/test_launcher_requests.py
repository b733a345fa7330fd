from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import rankwatch
from rankwatch import launcher_requests
from rankwatch.contract import env, ft_state, messages
from rankwatch.recording.shared_slots import Slots, read
from rankwatch_launcher.node.learned_limits import LearnedLimitsFile


@pytest.fixture(autouse=True)
def not_warned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_requests, "_warned", False)


@pytest.fixture
def slots_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "slots"
    monkeypatch.setenv(env.SLOTS_DIR, str(folder))
    return folder


def received(slots_dir: Path, local_rank: int) -> tuple[int, messages.RankRequest]:
    """What the launcher finds: how many requests, and the last one."""
    seen = read(Slots.open(slots_dir / env.slots_file(local_rank)))
    assert seen is not None
    body = json.loads((slots_dir / env.request_file(local_rank, seen.requests)).read_text())
    return seen.requests, messages.read(messages.RankRequest, body)


def test_the_launcher_finds_each_request_with_its_rank_and_reason(slots_dir: Path) -> None:
    rankwatch.init(rank=5, local_rank=1, world_size=8)
    assert rankwatch.exclude_node("uncorrectable memory errors on device 1")
    wanted = messages.RankRequest("exclude_node", "uncorrectable memory errors on device 1", 5)
    assert received(slots_dir, 1) == (1, wanted)
    assert rankwatch.stop_job("the loss is not finite")
    assert received(slots_dir, 1) == (2, messages.RankRequest("stop_job", "the loss is not finite", 5))
    assert [path.name for path in slots_dir.glob(".*")] == [], "no unfinished file is left"


def test_the_request_count_grows_only_after_the_file_is_written(
    slots_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rankwatch.init()
    counts = []
    replace = os.replace

    def watched(*paths: Any) -> None:
        seen = read(Slots.open(slots_dir / "0.slots"))
        assert seen is not None
        counts.append(seen.requests)
        replace(*paths)

    monkeypatch.setattr(os, "replace", watched)
    rankwatch.stop_job("now")
    assert counts == [0]
    assert received(slots_dir, 0)[0] == 1


def test_without_a_launcher_one_warning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert not rankwatch.exclude_node("before init()")
    rankwatch.init()
    assert not rankwatch.stop_job("after it")
    assert caplog.text.count("no launcher is connected") == 1
    assert "start the job with `rankwatch run`" in caplog.text


def test_a_removed_folder_is_logged_and_not_raised(slots_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    rankwatch.init()
    shutil.rmtree(slots_dir)
    assert not rankwatch.stop_job("too late")
    assert "stop_job() could not be passed to the launcher" in caplog.text


def test_after_shutdown_requests_are_ignored(slots_dir: Path) -> None:
    rankwatch.init()
    rankwatch.shutdown()
    assert not rankwatch.stop_job("too late")
    assert list(slots_dir.glob("*.request.*")) == []


def test_what_a_rank_reports_carries_its_kind_and_how_long_it_took(slots_dir: Path) -> None:
    rankwatch.init(rank=2, local_rank=0, world_size=4)
    assert rankwatch.tell(rankwatch.NoticeKind.WRONG_RESULT, "the loss of step 7 is NaN", 1.5)
    wanted = messages.RankRequest("tell", "the loss of step 7 is NaN", 2, notice="wrong_result", seconds=1.5)
    assert received(slots_dir, 0) == (1, wanted)


def test_a_policy_is_checked_where_it_is_asked_for(slots_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    rankwatch.init()
    assert rankwatch.change_policy({"on_straggler": "save_and_stop", "relative_threshold": 0.8})
    assert received(slots_dir, 0)[1].policy == {"on_straggler": "save_and_stop", "relative_threshold": 0.8}
    assert not rankwatch.change_policy({"relative_treshold": 0.8})
    assert "unknown policy setting 'relative_treshold'" in caplog.text
    assert not rankwatch.change_policy(None)  # type: ignore[arg-type]
    assert received(slots_dir, 0)[0] == 1


def test_output_that_is_not_read_is_reported_and_fills_no_disk(
    slots_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rankwatch.init()
    printed = [rankwatch.stop_job(f"number {n}") for n in range(launcher_requests.UNREAD + 5)]
    assert printed == [True] * launcher_requests.UNREAD + [False] * 5
    assert len(list(slots_dir.glob("*.request.*"))) == launcher_requests.UNREAD
    assert "have not been read" in caplog.text


def test_learned_timeouts_are_those_that_the_launcher_has_left(slots_dir: Path) -> None:
    assert rankwatch.learned_timeouts() is None
    rankwatch.init()
    assert rankwatch.learned_timeouts() is None
    state = LearnedLimitsFile()
    state.share(slots_dir)
    state.take({"ft_state": ft_state.write(ft_state.LearnedTimeouts({"step": 12.5}), {"setup": 600.0}, None)})
    assert rankwatch.learned_timeouts() == ft_state.LearnedTimeouts({"step": 12.5})
    (slots_dir / env.LEARNED_FILE).write_text("{")
    assert rankwatch.learned_timeouts() is None


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(("reason", "kept"), [("", "no reason given"), (7, "7"), ("x" * 5000, "x" * 1000)])
def test_any_reason_does(slots_dir: Path, reason: object, kept: str) -> None:
    rankwatch.init()
    assert rankwatch.stop_job(reason)  # type: ignore[arg-type]
    assert received(slots_dir, 0)[1].reason == kept


def test_a_reason_that_fails_does_not_reach_training(slots_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    rankwatch.init()
    assert not rankwatch.stop_job(Unspeakable())  # type: ignore[arg-type]
    assert "no words" in caplog.text


def test_a_forked_child_does_not_speak_for_the_rank(slots_dir: Path) -> None:
    rankwatch.init()
    child = os.fork()
    if child == 0:
        os._exit(rankwatch.stop_job("from a worker"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(slots_dir.glob("*.request.*")) == []
