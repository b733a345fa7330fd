"""Exits, directives and requests become decisions, with the description that is logged and reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankwatch.contract.enums import DirectiveKind, NoRestart
from rankwatch.contract.messages import Directive, RankRequest
from rankwatch_launcher import retry_policy
from rankwatch_launcher.coordination.decisions import FAIL, RESTART, STOP, AttemptDecision, StopRequest
from rankwatch_launcher.core import attempt_end
from rankwatch_launcher.core.attempt_end import describe_crash, describe_exit, describe_restart
from rankwatch_launcher.core.exits import RankError, RankExit
from rankwatch_launcher.outcome import CODE_FAILED, FAILED, PREEMPTED, Outcome


def exit_of(code: int, **more: Any) -> RankExit:
    return RankExit(5, 1, 99, code, **more)


# Decisions ------------------------------------------------------------------------------------------------------------


def test_a_crash_restarts_all_ranks_and_is_counted() -> None:
    decision = attempt_end.on_crash([exit_of(3), exit_of(1)], "n1", "h1", elsewhere=True)
    assert (decision.verdict, decision.counted, decision.fault, decision.avoid) == (RESTART, True, True, None)


@pytest.mark.parametrize(("elsewhere", "verdict"), [(True, RESTART), (False, FAIL)])
def test_code_16_resumes_on_another_node_if_there_is_one(elsewhere: bool, verdict: str) -> None:
    decision = attempt_end.on_crash([exit_of(16)], "n1", "h1", elsewhere=elsewhere)
    assert (decision.verdict, decision.code, decision.avoid) == (verdict, 16, "n1")
    assert decision.no_restart == ("" if elsewhere else NoRestart.RESUME_ELSEWHERE)
    assert decision.reason == f"{decision.cause}; {decision.why_none}" or elsewhere


def test_code_17_fails_the_job_whatever_else_happened() -> None:
    exits = [exit_of(16), exit_of(17), exit_of(17, message="the loss is nan")]
    decision = attempt_end.on_crash(exits, "n1", "h1", elsewhere=True)
    assert (decision.verdict, decision.code, decision.no_restart) == (FAIL, 17, NoRestart.RESULT_REJECTED)
    assert "the loss is nan" in decision.reason, "the exit with an explanation is described"


def directive(kind: DirectiveKind, **more: Any) -> Directive:
    return Directive(id=1, kind=kind, attempt=1, reason="rank 2 hangs", **more)


def test_a_restart_directive_excludes_the_nodes_that_it_names() -> None:
    decision = attempt_end.on_directive(directive(DirectiveKind.RESTART, exclude=("n2",), incident_id="i1"))
    assert decision is not None
    assert (decision.verdict, decision.counted, decision.fault) == (RESTART, True, True)
    assert (decision.incident, decision.exclude) == ("i1", {"n2": "excluded: rank 2 hangs"})


def test_a_stop_directive_ends_the_attempt_and_a_save_and_stop_does_not() -> None:
    decision = attempt_end.on_directive(directive(DirectiveKind.STOP))
    assert decision is not None
    assert (decision.verdict, decision.fault) == (STOP, False)
    assert attempt_end.on_directive(directive(DirectiveKind.SAVE_AND_STOP)) is None


@pytest.mark.parametrize("why", [NoRestart.USED_UP, NoRestart.NOT_ALLOWED])
def test_a_stop_since_no_restart_is_left_is_a_failure_that_may_be_launched_again(why: NoRestart) -> None:
    decision = attempt_end.on_directive(directive(DirectiveKind.STOP, no_restart=why, incident_id="i1"))
    assert decision is not None
    assert (decision.verdict, decision.fault, decision.incident) == (FAIL, False, "i1")
    assert (decision.code, decision.no_restart) == (CODE_FAILED, why)
    assert decision.reason == f"{decision.cause}; {decision.why_none}"
    failed = Outcome(FAILED, decision.code, decision.reason, no_restart=decision.no_restart)
    assert isinstance(retry_policy.after(failed, failed.code, False, 0, 1), retry_policy.Again)


@pytest.mark.parametrize(("elsewhere", "verdict"), [(True, RESTART), (False, FAIL)])
def test_the_only_node_cannot_be_excluded(elsewhere: bool, verdict: str) -> None:
    request = RankRequest("exclude_node", "ECC errors", 3)
    decision = attempt_end.on_exclusion_request(request, "n1", "h1", elsewhere=elsewhere)
    assert (decision.verdict, decision.counted, decision.fault, [*decision.exclude]) == (verdict, True, False, ["n1"])


def test_a_restart_during_a_graceful_stop_becomes_a_stop() -> None:
    restart = AttemptDecision(RESTART, "rank 0 crashed", exclude={"n1": "x"})
    decision = attempt_end.during_stop(restart, StopRequest("preempted", "n0", PREEMPTED))
    assert decision == replace(
        restart, verdict=STOP, state=PREEMPTED, reason="preempted; before it had saved, rank 0 crashed"
    )


# Descriptions ---------------------------------------------------------------------------------------------------------


def test_an_exit_is_described_with_its_code_and_the_first_line_of_its_message() -> None:
    assert describe_exit(exit_of(3), "h1") == "rank 5 on h1 exited with code 3"
    assert describe_exit(exit_of(1, message="ValueError: bad\nmore"), "h1").endswith("code 1: ValueError: bad")


def test_a_long_message_ends_with_a_whole_sentence() -> None:
    text = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. " + "GPU 0 has a capacity of 79.18 GiB. " * 9
    )
    assert exit_of(1, message=text).first_line == text[: text.rindex(". ", 0, 200) + 1]
    assert exit_of(1, message="x" * 900).first_line == "x" * 400


def test_a_signal_has_its_name() -> None:
    assert [exit_of(code).signal for code in (-9, -11, -60, 0)] == ["SIGKILL", "SIGSEGV", "signal 60", None]
    assert describe_exit(exit_of(-9), "h1").endswith("was killed by SIGKILL")


def test_the_abort_of_a_finished_rank_is_explained_and_any_other_is_not() -> None:
    assert attempt_end.ABORT_AT_EXIT in describe_exit(exit_of(-6, had_finished=True), "h1")
    assert attempt_end.ABORT_AT_EXIT not in describe_exit(exit_of(-6), "h1")
    assert attempt_end.ABORT_AT_EXIT not in describe_exit(exit_of(-9, had_finished=True), "h1")


def test_other_crashes_are_counted() -> None:
    assert describe_crash([exit_of(3), exit_of(1)], "h1").endswith("exited with code 3 (1 more at the same moment)")


def test_ranks_that_only_lost_their_peer_are_counted_apart() -> None:
    lost = [exit_of(1, error=RankError("RuntimeError: Connection closed by peer")) for _ in range(15)]
    crash = exit_of(1, message="ValueError: bad batch", error=RankError("ValueError: bad batch"))
    assert describe_crash([crash, *lost], "h1").endswith("ValueError: bad batch; 15 ranks lost their peer")
    assert describe_crash([crash, crash, lost[0]], "h1").endswith("(1 more at the same moment); 1 rank lost its peer")
    assert describe_crash(lost[:2], "h1").endswith("(1 more at the same moment)")


def test_a_rank_that_left_with_code_0_comes_before_the_connections_it_ended() -> None:
    crashes = [exit_of(1, message="Connection closed by peer"), exit_of(1)]
    decision = attempt_end.on_crash(crashes, "n1", "h1", elsewhere=True, left=[exit_of(0)])
    assert decision.reason == (
        "rank 5 on h1 exited with code 0 while other ranks still needed it; after that, rank 5 on h1 exited with "
        "code 1: Connection closed by peer (1 more at the same moment)"
    )
    two = attempt_end.describe_crash(crashes, "h1", left=[exit_of(0), exit_of(0)])
    assert "still needed it (1 more did); after that" in two


def test_a_restart_is_described_with_its_budget() -> None:
    restart = AttemptDecision(RESTART, "rank 1 hangs", incident="i9", used=2, max_restarts=3)
    assert describe_restart(restart) == "restarting all ranks (2 of 3)"
