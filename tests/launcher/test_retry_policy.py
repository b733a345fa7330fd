"""What follows when a launcher has ended: every line of the table, and what comes first when two of them fit."""

from __future__ import annotations

import pytest

from rankwatch_launcher.outcome import FAILED, FINISHED, PREEMPTED, STOPPED, Outcome
from rankwatch_launcher.retry_policy import Again, Done, GiveUp, Progress, after, backoff, exit_status

CRASH = Outcome(FAILED, 1, "rank 3 on n1 exited with code 3; all 3 restarts are used up")


def failed(code: int, iteration: int | None = None) -> Outcome:
    return Outcome(FAILED, code, "rank 3 asked for it", iteration=iteration)


@pytest.mark.parametrize(
    ("outcome", "code", "finished", "expected"),
    [
        (None, -9, True, Done(0, "training is complete: the finished flag exists")),
        (failed(93), 93, True, Done(0, "training is complete: the finished flag exists")),
        (Outcome(FINISHED, 0), 0, False, Done(0, "the job has finished")),
        (Outcome(FINISHED, 0), -6, False, Done(0, "the job has finished")),  # aborted while it shut down
        (None, 0, False, Done(0, "the launcher ended with exit code 0")),
        (Outcome(STOPPED, 0, "ann"), 0, False, Done(0, "stopped: ann; the stop was requested")),
        (Outcome(STOPPED, 1, "ann"), 1, False, Done(1, "stopped: ann; the stop was requested")),
    ],
)
def test_what_is_not_run_again_because_it_is_done(outcome: Outcome, code: int, finished: bool, expected: Done) -> None:
    assert after(outcome, code, finished, used=0, budget=5) == expected


@pytest.mark.parametrize(
    ("outcome", "code", "left", "words"),
    [
        (failed(93), 93, 93, "another launch would end the same way"),
        (None, 93, 93, "another launch would end the same way"),
        (failed(17), 17, 17, "a person must decide"),
        (None, 2, 2, "the command line is invalid"),
    ],
)
def test_what_no_retry_mends_is_given_up_with_its_code(
    outcome: Outcome | None, code: int, left: int, words: str
) -> None:
    verdict = after(outcome, code, False, used=0, budget=5)
    assert isinstance(verdict, GiveUp)
    assert verdict.code == left
    assert words in verdict.reason


def test_a_failure_is_run_again_while_retries_are_left_and_given_up_after() -> None:
    assert after(CRASH, 1, False, used=1, budget=2) == Again(f"failed: {CRASH.reason}")
    assert after(CRASH, 1, False, used=2, budget=2) == GiveUp(
        1, f"failed: {CRASH.reason}; all 2 retries of the job are used up (--job-retries)"
    )
    assert after(CRASH, 1, False, used=0, budget=0) == GiveUp(
        1, f"failed: {CRASH.reason}; no retry of the job is allowed (--job-retries)"
    )


def test_a_killed_launcher_is_a_counted_failure() -> None:
    assert after(None, -9, False, used=0, budget=1) == Again("the launcher was killed by SIGKILL")
    assert after(None, -9, False, used=1, budget=1).code == 137  # type: ignore[union-attr]
    assert after(None, 1, False, used=0, budget=1) == Again("the launcher ended with exit code 1")


@pytest.mark.parametrize("code", [0, 1])
def test_preemption_is_resumed_and_not_counted(code: int) -> None:
    verdict = after(Outcome(PREEMPTED, code, "the launcher on n0 got SIGTERM"), code, False, used=2, budget=2)
    assert isinstance(verdict, Again)
    assert not verdict.counted
    assert "the launcher on n0 got SIGTERM" in verdict.reason


def test_resume_elsewhere_is_counted() -> None:
    verdict = after(failed(16), 16, False, used=0, budget=1)
    assert isinstance(verdict, Again)
    assert verdict.counted
    assert after(failed(16), 16, False, used=1, budget=1).code == 16  # type: ignore[union-attr]


def test_a_job_that_gets_no_further_is_given_up_with_93() -> None:
    progress, verdicts = Progress(limit=3), []
    for used, reached in enumerate([100, 100, 40, None]):
        outcome = failed(1, reached)
        progress = progress.then(outcome)
        verdicts.append(after(outcome, 1, False, used, 10, progress))
    assert [type(verdict) for verdict in verdicts] == [Again, Again, Again, GiveUp]
    assert verdicts[-1].code == 93
    assert verdicts[-1].reason.startswith("3 launches in a row made no progress beyond step 100; the last one: failed")


def test_progress_in_between_begins_the_count_again() -> None:
    progress = Progress(limit=3)
    for reached in [100, 100, 100, 101, 101, 101]:
        progress = progress.then(failed(1, reached))
        assert not progress.stuck
    assert progress.then(failed(1, 101)).stuck


@pytest.mark.parametrize(
    "outcome", [None, Outcome(PREEMPTED, 0, iteration=50)], ids=["killed without a word", "preempted"]
)
def test_launches_that_report_nothing_about_progress_do_not_count(outcome: Outcome | None) -> None:
    progress = Progress(limit=1).then(failed(1, 100))
    for _ in range(5):
        progress = progress.then(outcome)
    assert not progress.stuck
    assert progress.then(failed(1, 100)).stuck


def test_a_job_whose_steps_are_unknown_is_not_judged_by_them() -> None:
    progress = Progress(limit=1)
    for _ in range(5):
        progress = progress.then(failed(1))
    assert not progress.stuck


def test_the_breaker_can_be_switched_off() -> None:
    progress = Progress(limit=0)
    for _ in range(9):
        progress = progress.then(failed(1, 7))
    assert not progress.stuck


def test_a_storm_of_launches_slows_down_and_a_long_launch_ends_it() -> None:
    waits = [0.0]
    for _ in range(7):
        waits.append(backoff(waits[-1], lasted=0.1))
    assert waits[1:] == [1, 2, 4, 8, 16, 30, 30]
    assert backoff(30.0, lasted=3600.0) == 1.0


@pytest.mark.parametrize(("code", "status"), [(0, 0), (93, 93), (-15, 143)])
def test_the_status_of_a_killed_launcher_is_that_of_a_shell(code: int, status: int) -> None:
    assert exit_status(code) == status
