"""The child process that runs the checks: all results, hangs within their limits, a child that dies."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path

import pytest

from launcher.conftest import wait_for
from rankwatch.contract.node_checks import CheckName, CheckReason, CheckState
from rankwatch_launcher.checks import runner
from rankwatch_launcher.checks.check import CheckedNode
from rankwatch_launcher.checks.runner import LIMITS, CheckRun


def test_every_check_answers_and_the_childs_process_ends(tmp_path: Path) -> None:
    run = CheckRun()
    run.begin(asdict(CheckedNode(paths=(str(tmp_path),), command="echo fine")))
    results = {each.name: each for each in run.wait()}
    assert list(results) == [str(name) for name in LIMITS]
    assert results["storage"].state == results["host"].state == results["command"].state == CheckState.PASSED
    assert results["command"].evidence == {"last": "fine"}
    assert run._process is not None
    assert run._process.poll() is not None


def test_a_check_that_hangs_has_failed_after_its_limit_and_all_it_started_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "START_SECONDS", 0.0)
    run = CheckRun({CheckName.COMMAND: 3.0, CheckName.STORAGE: 60.0})
    mark = tmp_path / "pid"
    run.begin(
        asdict(CheckedNode(paths=(str(tmp_path),), command=f"echo $$ > {mark}.new; mv {mark}.new {mark}; sleep 1000")),
        (CheckName.COMMAND, CheckName.STORAGE),
    )
    pid = int(wait_for(lambda: mark.exists() and mark.read_text()))
    results = {each.name: each for each in run.wait()}
    assert (results["command"].state, results["command"].reason) == (CheckState.FAILED, CheckReason.TIMED_OUT)
    assert results["storage"].state == CheckState.PASSED
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


def test_a_check_whose_process_dies_says_so_and_keeps_no_node_out() -> None:
    run = CheckRun({CheckName.COMMAND: 60.0})
    run.begin(asdict(CheckedNode(command="kill -SEGV $PPID; sleep 1000")), (CheckName.COMMAND,))
    (result,) = run.wait()
    assert (result.state, result.reason) == (CheckState.SKIPPED, CheckReason.BROKEN)
    assert str(-signal.SIGSEGV) in result.evidence["error"]


def test_a_child_that_was_started_ahead_ends_with_its_launcher() -> None:
    run = CheckRun()
    assert run._process is not None
    assert run._process.stdin is not None
    run._process.stdin.close()  # as when the launcher is killed
    assert run._process.wait(60) == 0
    run.close()


def test_where_no_process_can_be_started_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.Popen", none)
    run = CheckRun()
    run.begin(asdict(CheckedNode()))
    assert {(each.state, each.reason) for each in run.wait()} == {(CheckState.SKIPPED, CheckReason.BROKEN)}


@pytest.mark.parametrize(
    ("command", "code", "last"),
    [("echo a; echo b; exit 3", "exit code 3", ": b"), ("kill -9 $$", "SIGKILL", ""), ("exit 1", "exit code 1", "")],
)
def test_a_command_of_ones_own(command: str, code: str, last: str) -> None:
    run = CheckRun({CheckName.COMMAND: 60.0})
    run.begin(asdict(CheckedNode(command=command)), (CheckName.COMMAND,))
    (result,) = run.wait()
    assert (result.state, result.reason) == (CheckState.FAILED, CheckReason.EXIT_CODE)
    assert (result.evidence["code"], result.evidence["last"]) == (code, last)
