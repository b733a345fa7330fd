from __future__ import annotations

import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch.contract.enums import ConsoleWord, NoRestart
from rankwatch.monitor_client import EXIT_AWAY, EXIT_WRONG, MonitorError
from rankwatch_launcher.job import closing_summary
from rankwatch_launcher.job.closing_summary import SHOWN, Closing, closing
from rankwatch_launcher.outcome import FAILED, FINISHED, PREEMPTED, STOPPED, Outcome

JOB = {"goodput": 0.874, "started_at": 100.0, "ended_at": 172.0, "restarts": 1}


def restart(attempt: int, reason: str, action: str = "restart", **of: Any) -> dict[str, Any]:
    """An incident as the API lists it, after a restart."""
    return {
        "id": f"job-{attempt}", "attempt": attempt, "action": action, "label": reason, "reason": reason,
        "kind": "section_overrun",
        "culprits": [{"rank": attempt, "class": "behind"}], "section": "step", "furthest_iteration": 10 * attempt,
        "timeline": {"restarted": 100.0 + attempt}, **of,
    }  # fmt: skip


def crash(message: str, host: str = "host-0") -> dict[str, Any]:
    """What makes an incident a crash of rank 1."""
    cause = {"kind": "exited", "code": 1, "message": message, "early": False}
    return {"kind": "process_exited", "culprits": [{"rank": 1, "host": host, "class": "dead", "cause": cause}]}


def lines(*arguments: Any) -> list[str]:
    made = closing(*arguments)
    return [" · ".join((made.what, *made.facts)), *made.restarts]


def test_a_job_that_finished_with_a_restart() -> None:
    outcome = Outcome(FINISHED, 0, job_id="job", attempt=2, iteration=1400, restarts=1)
    first, second = lines(outcome, JOB, [restart(1, "rank 2 hung", steps_lost=5), restart(1, "slow", action="log")])
    assert first == "step 1,400 · goodput 87 % · 72.0 s · 1 restart"
    assert second.endswith("rank 2 hung, 5 steps lost")


def test_goodput_is_that_after_the_waiting_for_slow_ranks() -> None:
    outcome = Outcome(FINISHED, 0, job_id="job", restarts=1)
    beside = {"goodput": 0.8, "goodput_notes": ["7.4 % lost waiting for rank 5"]}
    [waited] = lines(outcome, JOB | beside, [])
    assert "goodput 80 % · 7.4 % lost waiting for rank 5 ·" in waited


def test_a_monitor_that_came_up_after_the_end_has_seen_no_duration() -> None:
    outcome = Outcome(FINISHED, 0, job_id="job", restarts=1)
    assert lines(outcome, {**JOB, "goodput": None, "ended_at": 98.0}, []) == ["1 restart"]


def test_of_a_failure_only_what_was_not_shown_is_told() -> None:
    why = "3 attempts in a row\nended so"
    told: dict[str, Any] = {"cause": "rank 1 exited", "no_restart": NoRestart.DETERMINISTIC, "why_none": why}
    outcome = Outcome(FAILED, 93, "a sentence of which nothing is taken", **told)
    made = closing(outcome, {}, [])
    assert made.word is ConsoleWord.FAILED
    assert made.what == "3 attempts in a row\\nended so"
    assert closing(Outcome(FAILED, 1, "the store is lost"), {}, []).what == "0 restarts"


def test_of_a_stop_it_is_told_whether_the_ranks_have_saved() -> None:
    saved = closing(Outcome(PREEMPTED, 0, agreed=True), {}, [])
    exited, killed = (closing(Outcome(state, code), {}, []) for state, code in ((PREEMPTED, 0), (STOPPED, 1)))
    assert {each.word for each in (saved, exited, killed)} == {ConsoleWord.STOPPED}
    assert len({saved.what, exited.what, killed.what}) == 3, "ranks that only exited after SIGTERM may not have saved"
    assert closing(Outcome(STOPPED, 130, "the launcher got SIGINT"), {}, []).what == "by Ctrl-C"


@pytest.mark.parametrize(("code", "told"), [(1, False), (16, True), (17, True), (93, True)])
def test_an_exit_code_that_schedulers_act_on_is_stated(code: int, told: bool) -> None:
    assert (
        "exit code"
        in lines(Outcome(FAILED, code, "rank 1 exited; so", cause="rank 1 exited", why_none="so"), JOB, ())[0]
    ) is told


def test_without_a_monitor_it_is_what_the_launcher_knows() -> None:
    assert lines(Outcome(FINISHED, 0, job_id="job", restarts=2), {}, ()) == ["2 restarts"]


@pytest.mark.parametrize("code", [EXIT_AWAY, EXIT_WRONG])
def test_a_monitor_that_refuses_is_not_said_to_be_away(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_self: Any, _path: str) -> Any:
        raise MonitorError("it wants another token, or nobody answers", code)

    monkeypatch.setattr(closing_summary.MonitorClient, "read", read)
    monitor: Any = SimpleNamespace(monitor_url="http://127.0.0.1:9", token="", record=None, holds_monitor=False)
    made = closing_summary.summary(Outcome(FINISHED, 0, job_id="job"), monitor)
    assert made.report == closing_summary._UNREAD[code == EXIT_WRONG]


@pytest.mark.parametrize("has_started", [False, True])
def test_a_job_that_ends_before_its_monitor_has_started_blames_no_disk(
    has_started: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = tmp_path / "job.db"
    monitor: Any = SimpleNamespace(
        monitor_url="http://127.0.0.1:9", token="", record=record, holds_monitor=True, has_started=has_started
    )
    closing_summary.summary(Outcome(FINISHED, 0, job_id="job"), monitor).show()
    assert ("ended before its monitor had started" in caplog.text) is not has_started
    assert (f"could be written to {record}" in caplog.text) is has_started


def test_a_record_that_could_not_be_written_is_not_promised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = tmp_path / "job.db"
    made = Closing(ConsoleWord.DONE, "step 9", (), (), "rankwatch report job", "job", record)
    made.show()
    record.write_bytes(b"")
    made.show()
    assert "rankwatch report" not in caplog.text
    assert caplog.text.count(str(record)) == 2
    caplog.clear()
    with sqlite3.connect(record) as database:
        database.execute("CREATE TABLE jobs (id TEXT)")
        database.execute("INSERT INTO jobs VALUES ('job')")
    database.close()
    with caplog.at_level("INFO", "rankwatch"):
        made.show()
    assert "rankwatch report job" in caplog.text
    assert closing_summary._has_job(record, "another") is False


def test_of_many_restarts_the_newest_are_shown_in_their_order() -> None:
    many = [restart(attempt, f"reason {attempt}") for attempt in range(20, 0, -1)]
    told = lines(Outcome(FINISHED, 0, job_id="job", restarts=20), {}, many)[1:]
    assert len(told) == SHOWN
    assert told[-1].endswith("reason 20")


SUSPECTED = {"timeline": {"restarted": None}, "confirmed": False}


def test_a_suspicion_that_ended_by_itself_is_no_restart() -> None:
    outcome = Outcome(FINISHED, 0, job_id="job")
    for action in ("restart", "restart_excluding_node"):
        assert len(lines(outcome, {}, [restart(1, "no progress for 3.1 s", action, **SUSPECTED)])) == 1


def test_one_restart_is_one_line_although_a_hang_was_suspected_first() -> None:
    found = [restart(1, "rank 1 exited", **crash("KeyError")), restart(1, "all ranks are stuck")]
    for earlier in (found[1], found[1] | SUSPECTED):
        [line] = lines(Outcome(FINISHED, 0, job_id="job", restarts=1), {}, [found[0], earlier])[1:]
        assert line.endswith("rank 1 exited")


def test_no_sentence_is_repeated() -> None:
    same = {"culprits": [{"rank": 1, "class": "behind"}], "furthest_iteration": 44}
    hangs = [restart(attempt, f"rank 1 hung for {attempt}.1 s", **same) for attempt in (3, 2, 1)]
    told = lines(Outcome(FINISHED, 0, job_id="job", restarts=3), {}, hangs)[1:]
    assert [line.count("hung") for line in told] == [1, 0, 0]
    assert all("attempt 1" in line for line in told[1:])
    elsewhere = lines(Outcome(FINISHED, 0, job_id="job"), {}, [hangs[0] | {"furthest_iteration": 60}, *hangs[1:]])
    assert [line.count("hung") for line in elsewhere[1:]] == [1, 0, 1]


def test_crashes_of_one_rank_with_different_errors_are_told_apart() -> None:
    crashes = [restart(attempt, "ValueError", **crash(f"ValueError: {attempt % 2}")) for attempt in (3, 2, 1)]
    told = lines(Outcome(FINISHED, 0, job_id="job", restarts=3), {}, crashes)[1:]
    assert [line.count("ValueError") for line in told] == [1, 1, 0]


def test_a_crash_is_the_same_whatever_its_sentence_adds() -> None:
    found = [restart(2, "ValueError; after that, rank 3 ended", **crash("ValueError"))]
    found.append(restart(1, "ValueError", **crash("ValueError")))
    for host, times in (("host-0", 1), ("host-1", 2)):
        told = lines(Outcome(FINISHED, 0, job_id="job"), {}, [found[0] | crash("ValueError", host), found[1]])[1:]
        assert sum("ValueError" in line for line in told) == times
