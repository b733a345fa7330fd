from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest

from rankwatch.contract import env
from rankwatch.contract.messages import RankRequest
from rankwatch.recording.shared_slots import Reading
from rankwatch_launcher.node import rank_requests as module
from rankwatch_launcher.node.rank_requests import RequestInbox


def reading(requests: int, pid: int = 10, rank: int = 4) -> Reading:
    seen = Mock(spec=Reading)
    seen.requests, seen.pid, seen.rank = requests, pid, rank
    return seen


def put(folder: Path, number: int, request: RankRequest, local_rank: int = 0) -> None:
    (folder / env.request_file(local_rank, number)).write_text(json.dumps(asdict(request)))


def test_each_request_is_read_once_in_order_and_removed(tmp_path: Path) -> None:
    inbox = RequestInbox(tmp_path)
    wanted = [RankRequest("stop_job", f"number {n}", 4) for n in (1, 2, 3)]
    for number, request in enumerate(wanted, 1):
        put(tmp_path, number, request)
    assert inbox.take({0: reading(2)}) == wanted[:2]
    assert inbox.take({0: reading(3)}) == wanted[2:]
    assert inbox.take({0: reading(3)}) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("again", [reading(1, pid=11), reading(1)])
def test_a_session_that_begins_again_counts_from_one(tmp_path: Path, again: Reading) -> None:
    inbox = RequestInbox(tmp_path)
    for number in (1, 2):
        put(tmp_path, number, RankRequest("stop_job", "before", 4))
    inbox.take({0: reading(2)})
    put(tmp_path, 1, RankRequest("stop_job", "anew", 4))
    assert [r.reason for r in inbox.take({0: again})] == ["anew"]


@pytest.mark.parametrize("content", ["", "[]", '{"action": "tell"}', "{"])
def test_what_cannot_be_read_is_reported_and_does_not_hold_up_the_next(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.logger, "propagate", True)
    (tmp_path / env.request_file(0, 1)).write_text(content)
    put(tmp_path, 2, RankRequest("stop_job", "fine", 4))
    assert [r.reason for r in RequestInbox(tmp_path).take({0: reading(2)})] == ["fine"]
    assert "invalid request of rank 4 ignored" in caplog.text


def test_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    inbox = RequestInbox(tmp_path)
    put(tmp_path, 1, RankRequest("tell", "restarted here", 4, notice="restarted_in_process"))
    put(tmp_path, 1, RankRequest("tell", "the loss is NaN", 5, notice="wrong_result"), local_rank=1)
    put(tmp_path, 1, RankRequest("tell", "it gives up", 6, notice="last_words"), local_rank=2)
    inbox.take({0: reading(1), 1: reading(1, pid=12, rank=5), 2: reading(1, pid=13, rank=6)})
    reported = ["restarted here", "the loss is NaN", "it gives up", ""]
    assert [inbox.exit_reason(local, 1) for local in (0, 1, 2, 3)] == reported
    now[0] += module.EXIT_REASON_SECONDS + 1
    assert [inbox.exit_reason(local, 17) for local in (0, 1, 2)] == ["", "the loss is NaN", "it gives up"]
    assert inbox.exit_reason(1, 1) == "", "it went on for a while, and ended for something else"
