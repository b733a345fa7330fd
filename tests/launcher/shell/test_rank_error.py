"""The exception of a rank: read from its error file or its log, told from consequences, and from what may pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from rankwatch.contract.enums import ProcessState
from rankwatch.contract.messages import Frame
from rankwatch_launcher.core.attempt_end import by_cause, futile_restart
from rankwatch_launcher.core.exits import RankExit
from rankwatch_launcher.shell.agent import _failure
from rankwatch_launcher.shell.rank_error import RankError, error_of, frames_of, read_error

CHAINED = """Traceback (most recent call last):
  File "/a/data.py", line 3, in load
    open(path)
FileNotFoundError: [Errno 2] No such file

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/a/train.py", line 9, in <module>
    main()
  File "/a/train.py", line 5, in main
    raise ValueError("bad batch") from None
ValueError: bad batch
second line
"""
FRAMES = (Frame("main", "/a/train.py", 5), Frame("<module>", "/a/train.py", 9))
PEER = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:8579"


def test_the_frames_are_those_of_the_last_traceback_innermost_first() -> None:
    assert frames_of(CHAINED) == FRAMES


def test_a_log_ends_with_the_last_traceback_also_when_torch_prefixes_its_lines() -> None:
    prefixed = "".join(f"[rank1]: {line}\n" for line in CHAINED.splitlines()) + "[rank1]: bye\n"
    assert error_of(f"epoch 3\n{prefixed}") == RankError("ValueError: bad batch", FRAMES)
    assert error_of(f"{CHAINED}{'epoch 4 follows' + chr(10) * 30}") is None, "the process went on"
    assert error_of("epoch 3\n") is None
    assert error_of("Traceback (most recent call last):\n") is None


def test_an_error_file_is_read_before_a_log(tmp_path: Path) -> None:
    file, log = tmp_path / "error.json", tmp_path / "stderr.log"
    log.write_text(CHAINED.replace("ValueError", "KeyError"))
    extra = {"py_callstack": CHAINED, "timestamp": "7"}
    assert read_error(str(file), str(log)) == RankError("KeyError: bad batch", FRAMES)
    file.write_text(json.dumps({"message": {"message": "ValueError: bad batch\nsecond line", "extraInfo": extra}}))
    error = read_error(str(file), str(log))
    assert error == RankError("ValueError: bad batch\nsecond line", FRAMES, 7.0, recorded=True)
    assert (error.kind, error.first_line) == ("ValueError", "ValueError: bad batch")
    assert error.where() == "main (train.py:5) < <module> (train.py:9)"
    stack = error.stack(3, 99)
    assert (stack.rank, stack.method, stack.frames, stack.process_state) == (
        3,
        "traceback",
        FRAMES,
        ProcessState.EXITED,
    )


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"message": 3}', '{"message": {"extraInfo": 1}}', '{"message": ""}']
)
def test_an_error_file_that_reports_nothing_is_ignored(tmp_path: Path, content: str) -> None:
    file = tmp_path / "error.json"
    file.write_text(content)
    assert read_error(str(file)) is None
    assert read_error("") is None


def ended(rank: int, message: str = "", code: int = 1, at: float = 0.0, **more: bool) -> RankExit:
    error = RankError(message, at=at, **more) if message else None
    return RankExit(rank, rank, 90 + rank, code, message, error=error)


def test_the_first_exception_that_is_no_consequence_is_the_cause() -> None:
    exits = [ended(0, PEER, at=1.0), ended(1, "KeyError: 'x'", at=5.0), ended(2, "ValueError: y", at=4.0)]
    assert [e.rank for e in by_cause(exits)] == [2, 1, 0]
    assert [e.rank for e in by_cause([ended(0, PEER), ended(3, code=-9)])] == [3, 0], "killed, and the peer sees it"
    assert [e.rank for e in by_cause([ended(0, code=-6), ended(1, "KeyError: 'x'")])] == [1, 0]
    assert [e.rank for e in by_cause([ended(0), ended(1, "KeyError: 'x'")])] == [1, 0], "one with an explanation"
    assert [e.rank for e in by_cause([ended(1, PEER), ended(0, PEER)])] == [1, 0]


IMPORT = "ModuleNotFoundError: No module named 'x'"


@pytest.mark.parametrize(
    ("exits", "ranks", "elapsed", "futile"),
    [
        ([ended(0, IMPORT), ended(1, IMPORT)], 2, 1.0, True),
        ([ended(0, IMPORT), ended(1, IMPORT)], 2, 900.0, True),
        ([ended(0, IMPORT)], 2, 1.0, False),
        ([ended(0, IMPORT), ended(1, "KeyError: 'x'")], 2, 1.0, False),
        ([ended(0, "KeyError: 'x'"), ended(1, "KeyError: 'x'")], 2, 1.0, True),
        ([ended(0, "KeyError: 'x'"), ended(1, "KeyError: 'x'")], 2, 900.0, False),
        ([ended(0, "OSError: [Errno 5] Input/output error", passing=True)], 1, 1.0, False),
        ([ended(0, "FileNotFoundError: [Errno 2] No such file or directory: 'cfg.yaml'")], 1, 1.0, True),
        ([ended(0, "RuntimeError: CUDA error: out of memory")], 1, 1.0, False),
        ([ended(0, "HTTPError: 503 Service Unavailable")], 1, 1.0, False),
        ([ended(0, PEER), ended(1, PEER)], 2, 1.0, False),
        ([ended(0), ended(1)], 2, 1.0, False),
        ([ended(0, code=2)], 1, 1.0, False),
        ([ended(0, IMPORT, code=-6)], 1, 1.0, False),
        ([], 0, 1.0, False),
    ],
)
def test_no_restart_follows_a_start_that_fails_alike_on_all_ranks(
    exits: list[RankExit], ranks: int, elapsed: float, futile: bool
) -> None:
    assert (futile_restart(exits, ranks, elapsed) is not None) is futile


def test_torchs_table_has_the_exception_and_no_advice_that_does_not_hold() -> None:
    known = _failure(RankExit(1, 1, 99, 1, error=RankError("ValueError: bad\nbatch")), None)
    table = str(ChildFailedError("train.py", {1: known}))
    assert "traceback : ValueError: bad" in table
    assert "pytorch.org" not in table
    assert "pytorch.org" in str(ChildFailedError("train.py", {1: _failure(RankExit(1, 1, 99, 1), None)}))
