from __future__ import annotations

from rankwatch_launcher.job.closing_summary import SHOWN, lines
from rankwatch_launcher.outcome import FAILED, FINISHED, Outcome

JOB = {"goodput": 0.874, "started_at": 100.0, "ended_at": 172.0, "restarts": 1}


def restart(attempt: int, reason: str, action: str = "restart") -> dict[str, object]:
    return {"id": f"job-{attempt}", "attempt": attempt, "action": action, "reason": reason}


def test_a_job_that_finished_with_a_restart() -> None:
    outcome = Outcome(FINISHED, 0, job_id="job", attempt=2, iteration=140, restarts=1)
    first, second = lines(outcome, JOB, [restart(1, "rank 2 hung"), restart(1, "slow", action="log")])
    assert first == "job job finished: step 140, goodput 87.4 %, in 72.0 s, 1 restart"
    assert second.endswith("rank 2 hung")


def test_goodput_is_that_after_the_waiting_for_slow_ranks() -> None:
    outcome = Outcome(FINISHED, 0, job_id="job", restarts=1)
    beside = {"goodput_without_waiting": 0.8, "goodput_notes": ["7.4 % lost waiting for rank 5"]}
    [waited] = lines(outcome, JOB | beside, [])
    assert "goodput 80.0 %, 7.4 % lost waiting for rank 5, in" in waited


def test_a_monitor_that_came_up_after_the_end_has_seen_no_duration() -> None:
    outcome = Outcome(FINISHED, 0, job_id="job", restarts=1)
    assert lines(outcome, {**JOB, "goodput": None, "ended_at": 98.0}, []) == ["job job finished: 1 restart"]


def test_the_reason_of_a_failure_is_one_line() -> None:
    _, because = lines(Outcome(FAILED, 1, "rank 1 exited\nwith code 3", job_id="job"), {}, [])
    assert "rank 1 exited" in because
    assert "\n" not in because


def test_without_a_monitor_it_is_what_the_launcher_knows() -> None:
    assert lines(Outcome(FINISHED, 0, job_id="job", restarts=2), {}, ()) == ["job job finished: 2 restarts"]


def test_of_many_restarts_the_newest_are_shown_in_their_order() -> None:
    many = [restart(attempt, f"reason {attempt}") for attempt in range(20, 0, -1)]
    told = lines(Outcome(FINISHED, 0, job_id="job", restarts=20), {}, many)[1:]
    assert len(told) == SHOWN
    assert told[-1].endswith("reason 20")
