"""Actions on stragglers: once each, within caps, and none when many ranks are slow at once."""

from __future__ import annotations

import pytest

from rankwatch.contract.enums import Action, CulpritClass, DirectiveKind, JobState, VerdictKind
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.views import verdict
from support.windows import COMPUTE, Ranks, Work, slower

CAPTURE, RESTART = DirectiveKind.CAPTURE, DirectiveKind.RESTART


def acting(on_straggler: str, ranks: int = 32, **policy: object) -> Ranks:
    return Ranks(ranks, launchers=True, policy={"on_straggler": on_straggler, **policy}).run(4)


def slow(job: Ranks, windows: int = 3) -> Ranks:
    return job.run(windows, slower(9, COMPUTE, 0.4))


def kinds(job: Ranks) -> list[DirectiveKind]:
    return [directive.kind for directive in job.directives]


def test_by_default_a_straggler_is_only_logged() -> None:
    job = slow(acting("log"), 8)
    assert len(job.performance.open_stragglers) == 1
    assert job.job.incidents == []
    assert job.directives == []


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("restart", RESTART),
        ("restart_excluding_node", RESTART),
        ("save_and_stop", DirectiveKind.SAVE_AND_STOP),
        ("stop", DirectiveKind.STOP),
    ],
)
def test_stacks_are_captured_first_and_the_directive_has_the_reason(action: str, kind: DirectiveKind) -> None:
    job = slow(acting(action))
    (incident,) = job.job.incidents
    (straggler,) = job.performance.open_stragglers
    assert (incident.kind, incident.reason) == (VerdictKind.STRAGGLER, straggler.reason)
    assert [(c.rank, c.kind) for c in incident.culprits] == [(9, CulpritClass.STRAGGLER)]
    assert verdict.job_state(job.job, job.now)[0] is JobState.SLOW  # nothing stands still
    assert kinds(job) == [CAPTURE]
    job.wait(6.0)
    assert kinds(job) == [CAPTURE, kind]
    assert job.directives[-1].reason == straggler.reason
    assert job.directives[-1].exclude == (("host-1",) if action == "restart_excluding_node" else ())
    assert straggler.action is Action(action)


def test_a_capture_requests_stacks_and_a_trace_only() -> None:
    job = slow(acting("capture"))
    assert job.job.performance.trace == {"rank": 9, "id": job.job.incidents[0].id}
    job.wait(6.0)
    slow(job, 6)
    assert kinds(job) == [CAPTURE]
    assert not job.job.incidents[0].open


def test_a_straggler_is_acted_on_once() -> None:
    job = slow(acting("capture")).wait(6.0)
    slow(job, 10)
    assert len(job.job.incidents) == 1


def test_many_slow_ranks_at_once_are_not_acted_on() -> None:
    def third(_: int, work_RP: Work) -> None:
        work_RP[::3, COMPUTE] += 0.4

    job = acting("restart").run(6, third)
    assert len(job.performance.open_stragglers) == 11
    assert job.directives == []
    assert any("11 of 32 ranks on 4 hosts are slow at once, so no single one is the cause" in line for line in job.log)


def test_slow_ranks_of_one_host_count_as_one_cause() -> None:
    def host(_: int, work_RP: Work) -> None:
        work_RP[8:16, COMPUTE] += 0.4

    job = acting("restart_excluding_node", 64).run(6, host).wait(6.0)
    assert job.directives[-1].exclude == ("host-1",)
    assert "7 more ranks of this host are slow too" in job.job.incidents[0].reason


def test_an_exhausted_restart_budget_does_not_end_a_slow_job() -> None:
    job = slow(acting("restart", max_restarts=0), 8)
    assert job.directives == []
    assert "a slow rank is no reason to end a job" in job.performance.open_stragglers[0].action_reason


def test_observe_only_takes_no_action() -> None:
    job = slow(acting("restart", observe_only=True), 8)
    assert job.directives == []
    assert job.performance.open_stragglers[0].action_reason == "observe-only is on"


def test_a_straggler_does_not_hide_a_hang() -> None:
    job = slow(acting("log", silence_timeout=20.0), 8)
    for _ in range(6):  # all but one go on to speak
        for rank in set(range(32)) - {9}:
            apply(job.job, job.report(rank), job.now + 10.0)
        job.wait(10.0)
    assert job.job.incidents[-1].kind is VerdictKind.SILENT


def test_detection_can_be_switched_off_and_on() -> None:
    job = Ranks(8, policy={"straggler_detection": False}).run(4)
    job.run(8, slower(3, COMPUTE, 0.4))
    assert job.performance.scores is None
    assert job.performance.stragglers == []
    job.job.policy = job.job.policy.changed({"straggler_detection": True})
    job.run(8, slower(3, COMPUTE, 0.4))
    assert [s.rank for s in job.performance.open_stragglers] == [3]
    job.job.policy = job.job.policy.changed({"straggler_detection": False})
    job.run(1, slower(3, COMPUTE, 0.4))
    assert job.performance.open_stragglers == []
    assert job.log[-1].startswith("Rank 3 is no straggler any more: straggler_detection was switched off")


# Restarts that do not help --------------------------------------------------------------------------------------------


def test_a_restart_that_did_not_help_is_not_repeated() -> None:
    job = slow(acting("restart")).wait(6.0)
    assert kinds(job) == [CAPTURE, RESTART]
    slow(job.restart(), 30)
    (again,) = job.performance.open_stragglers
    assert kinds(job) == [CAPTURE, RESTART]
    assert again.action is Action.LOG
    assert "it was slow before the restart of attempt 1 too" in again.action_reason
    assert any("Nothing is done about rank 9: it was slow before the restart" in line for line in job.log)


def test_nodes_are_not_excluded_one_after_the_other_for_the_work_of_a_rank() -> None:
    job = slow(acting("restart_excluding_node")).wait(6.0)
    job.moved = {9: "host-3"}
    slow(job.restart(), 30)
    assert kinds(job) == [CAPTURE, RESTART]
    assert "rank 9 was slow on host-1 too" in job.performance.open_stragglers[0].action_reason


def test_another_rank_or_the_same_one_after_a_day_is_acted_on() -> None:
    job = slow(acting("restart")).wait(6.0)
    job.restart().run(4).run(3, slower(20, COMPUTE, 0.4)).wait(6.0)
    assert kinds(job) == [CAPTURE, RESTART] * 2
    job.restart().run(4).now += 100_000.0
    slow(job.run(4)).wait(6.0)
    assert kinds(job) == [CAPTURE, RESTART] * 3


def test_a_straggler_of_the_attempt_before_is_not_acted_on() -> None:
    """Its attempt was ended by the restart of a hang; in the new one no rank is known to be slow."""
    job = acting("log")
    slow(job)
    job.job.policy = job.job.policy.changed({"on_straggler": "restart"})
    job.restart()
    job.wait(6.0)
    assert kinds(job) == []
    assert job.job.incidents == []


def test_a_recorded_straggler_is_reconsidered_when_the_policy_changes() -> None:
    job = slow(acting("restart", observe_only=True), 8)
    assert kinds(job) == []
    job.job.policy = job.job.policy.changed({"observe_only": False})
    slow(job, 1).wait(6.0)
    assert kinds(job) == [CAPTURE, RESTART]


def test_many_slow_ranks_on_the_only_host_are_no_single_cause() -> None:
    def some(_: int, work_RP: Work) -> None:
        work_RP[:3, COMPUTE] += 0.4

    job = acting("restart", 8).run(6, some)
    assert len(job.performance.open_stragglers) == 3
    assert kinds(job) == []
    assert any("3 of 8 ranks are slow at once, so no single one is the cause" in line for line in job.log)


# The fastest reference ------------------------------------------------------------------------------------------------


def test_thresholds_of_the_fastest_reference_are_strict_and_may_change() -> None:
    job = Ranks(8, noise=0.0, policy={"straggler_reference": "fastest", "relative_threshold": 0.5}).run(2)
    job.kernels({3: 0.5})
    job.run(1).run(1)
    assert job.performance.open_stragglers == []  # 0.5 is not below 0.5
    job.job.policy = job.job.policy.changed({"relative_threshold": 0.6})
    job.run(1)
    (straggler,) = job.performance.open_stragglers
    assert straggler.rank == 3
    assert straggler.score == pytest.approx(0.5)
    assert "its relative GPU score 0.50 is below 0.6" in straggler.reason
