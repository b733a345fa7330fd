"""Coordinators of one job over an in-memory store and a simulated clock: restarts, exclusion, take-over, stops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from torch.distributed import HashStore

from rankwatch.contract.enums import NodeRole
from rankwatch_launcher.coordination import coordinator as module
from rankwatch_launcher.coordination.coordinator import SETTLE_SECONDS, Coordinator
from rankwatch_launcher.coordination.decisions import (
    FAIL,
    RESTART,
    AttemptDecision,
    RestartBudget,
    StepRange,
    StopRequest,
)
from rankwatch_launcher.coordination.links import Connections
from rankwatch_launcher.coordination.membership import Member, MembershipRules, NodeProgress, StopAnswer
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.outcome import FINISHED, Outcome


class Job:
    """The launchers of one job; every ``tick`` is one heartbeat and one step of each that is not silent."""

    def __init__(self, minimum: int, maximum: int, *names: str, restarts: int = 3) -> None:
        self.shared = HashStore()
        self.store = JobStore(self.shared, "job")
        self.now = 100.0
        self.budget = RestartBudget(restarts)
        self.rules = MembershipRules(minimum, maximum, node_timeout=6.0, last_call=0.0)
        self.members: dict[str, Member] = {}
        self.coordinators: dict[str, Coordinator] = {}
        self.silent: set[str] = set()
        self.lost: list[tuple[str, int]] = []
        self.join(*names)

    def join(self, *names: str) -> None:
        for name in names:
            self.members[name] = Member(name, f"host-{name}", 1, ready_after=0)
            self.store.register(self.members[name])
            self.coordinators[name] = Coordinator(
                JobStore(self.shared, "job"),
                name,
                self.rules,
                budget=lambda: self.budget,
                on_lost=lambda loss, attempt: self.lost.append((loss.member.node, attempt)),
            )

    def update(self, name: str, **changes: Any) -> None:
        self.members[name] = replace(self.members[name], **changes)

    def tick(self, seconds: float = 1.0, times: int = 1) -> None:
        for _ in range(times):
            self.now += seconds
            for name in [name for name in self.members if name not in self.silent]:
                self.update(name, heartbeat=self.members[name].heartbeat + 1)
                self.store.write_member(self.members[name])
                self.coordinators[name].step(self.now)

    def run(self, attempt: int) -> None:
        """The active launchers of an attempt take their places."""
        for name in self.store.roster(attempt).active:
            self.update(name, ready_after=None)

    def end(self, attempt: int) -> None:
        """All active launchers have ended their ranks and wait for the next attempt."""
        for name in self.store.roster(attempt).active:
            self.update(name, ready_after=attempt)

    def role(self, name: str, attempt: int) -> NodeRole:
        place = self.store.place(attempt, name)
        assert place is not None
        return place.role

    @property
    def leaders(self) -> list[str]:
        return [n for n, c in self.coordinators.items() if c.leads and n not in self.silent]


def running(minimum: int, maximum: int, *names: str, restarts: int = 3) -> Job:
    job = Job(minimum, maximum, *names, restarts=restarts)
    job.tick(times=2)
    job.run(1)
    job.tick()
    return job


def test_one_launcher_coordinates_and_every_launcher_gets_a_place() -> None:
    job = running(2, 2, "a", "b", "c")
    assert job.leaders == ["a"]
    assert [job.role(name, 1) for name in "abc"] == [NodeRole.ACTIVE, NodeRole.ACTIVE, NodeRole.SPARE]


def test_a_lost_node_costs_one_restart_and_the_spare_takes_its_place() -> None:
    job = running(2, 2, "a", "b", "c")
    job.silent.add("b")
    job.tick(times=5)
    assert job.store.decision(1) is None, "within the timeout"
    job.tick(times=3)
    decision = job.store.decision(1)
    assert decision is not None
    assert (decision.verdict, decision.used, job.lost) == (RESTART, 1, [("b", 1)])
    job.end(1)
    job.tick(times=2)
    assert job.store.roster(2).active == ("a", "c")
    assert job.store.restarts() == 1


def test_a_lost_node_fails_the_job_when_the_budget_is_used_up() -> None:
    job = running(2, 2, "a", "b", "c", restarts=0)
    job.silent.add("b")
    job.tick(times=8)
    decision = job.store.decision(1)
    assert decision is not None
    assert decision.verdict == FAIL
    job.end(1)
    job.tick(times=5)
    assert job.store.newest_attempt() == 1, "no roster follows a failure"


def test_another_launcher_takes_over_from_a_dead_coordinator() -> None:
    job = running(2, 2, "b", "c", "a")
    job.silent.add("b")
    job.tick(times=8)
    assert job.leaders in (["c"], ["a"])
    job.tick(times=12)
    assert [lost for lost, _ in job.lost] == ["b"], "the new coordinator finds only the dead one lost"
    decision = job.store.decision(1)
    assert decision is not None
    assert decision.verdict == RESTART
    job.end(1)
    job.tick(times=3)
    assert set(job.store.roster(2).active) == {"a", "c"}
    assert job.store.restarts() == 1


def test_a_new_coordinator_decides_nothing_before_it_knows_which_launchers_are_alive() -> None:
    job = running(2, 2, "a", "b")
    job.silent.add("a")
    while not job.leaders:
        job.tick(0.5)
    assert job.store.decision(1) is None
    job.tick(SETTLE_SECONDS + 1.0)
    job.tick()
    assert job.store.decision(1) is not None


def test_a_new_coordinator_of_many_launchers_waits_for_their_rarer_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    job = running(3, 3, "a", "b", "c", "d")
    monkeypatch.setattr(module, "MAX_HEARTBEATS_PER_SECOND", len(job.members) / 6)  # one of each in 6 s
    job.tick(6.0)
    assert job.coordinators["a"].interval == pytest.approx(6.0)
    job.silent.add("a")
    while not job.leaders:
        job.tick(6.0)
    (leader,) = job.leaders
    # Until its next heartbeat, each of the others is silent for longer than one of few would be.
    for _ in range(5):
        job.now += 1.1
        job.coordinators[leader].step(job.now)
    assert job.lost == []
    job.tick(6.0, times=4)
    assert job.lost == [("a", 1)], "the one that was lost"


def test_heartbeats_are_as_rare_before_the_first_roster_as_with_all_launchers() -> None:
    job = Job(12_500, 12_500, "a")
    assert job.coordinators["a"].interval == pytest.approx(6.25)
    job.tick()
    assert job.coordinators["a"].node_timeout == pytest.approx(3 * 6.25)


def test_a_new_coordinator_makes_no_roster_with_launchers_that_died_under_the_last() -> None:
    job = running(1, 3, "a", "b", "c")
    job.store.end_attempt(1, AttemptDecision(RESTART, "rank 0 crashed"), by="a", budget=job.budget)
    job.end(1)
    for member in job.members.values():
        job.store.write_member(member)
    job.silent |= {"a", "c"}
    job.tick(times=12)
    assert job.leaders == ["b"]
    assert job.store.roster(2).active == ("b",)


def test_a_coordinator_that_has_left_is_replaced_at_once() -> None:
    job = running(2, 3, "a", "b", "c")
    job.update("a", left="it got SIGINT")
    job.store.write_member(job.members["a"])
    job.silent.add("a")
    job.tick()
    assert job.leaders == ["b"]


def test_a_suspended_store_loses_no_node() -> None:
    job = running(2, 2, "a", "b")
    job.now += 30.0
    for coordinator in job.coordinators.values():
        coordinator.reset_timers(job.now)
    job.tick(times=3)
    assert (job.store.decision(1), job.lost) == (None, [])


def test_an_excluded_node_is_parked_with_its_host_and_stays_excluded() -> None:
    job = running(2, 2, "a", "b", "c")
    decision = AttemptDecision(RESTART, "ECC errors", exclude={"b": "excluded: ECC errors"})
    job.store.end_attempt(1, decision, by="a", budget=job.budget)
    job.end(1)
    job.tick(times=2)
    assert job.store.roster(2).active == ("a", "c")
    assert job.role("b", 2) is NodeRole.PARKED
    assert set(job.store.excluded()) == {"b", "host:host-b"}


def test_a_newcomer_regroups_a_job_with_free_places_without_using_a_restart() -> None:
    job = running(1, 2, "a")
    job.join("b")
    job.tick(times=2)
    decision = job.store.decision(1)
    assert decision is not None
    assert (decision.verdict, decision.counted, decision.fault) == (RESTART, False, False)
    job.end(1)
    job.tick(times=2)
    assert job.store.roster(2).active == ("a", "b")
    assert job.store.restarts() == 0


def test_a_launcher_that_comes_to_a_full_job_becomes_a_spare_and_disturbs_nothing() -> None:
    job = running(2, 2, "a", "b")
    job.join("c")
    job.tick(times=2)
    assert job.store.decision(1) is None
    assert job.role("c", 1) is NodeRole.SPARE


def test_no_roster_follows_once_the_job_is_closed() -> None:
    job = running(2, 2, "a", "b")
    job.store.close(Outcome(FINISHED, 0))
    job.update("b", left="finished")
    job.tick(times=3)
    assert job.store.decision(1) is None, "a launcher that leaves after the job is over is not missing"


def test_a_launcher_that_leaves_early_ends_the_attempt() -> None:
    job = running(2, 2, "a", "b")
    job.update("b", left="it got SIGINT")
    job.tick(times=2)
    decision = job.store.decision(1)
    assert decision is not None
    assert "has left: it got SIGINT" in decision.reason


# The stop step --------------------------------------------------------------------------------------------------------


def progress(step: int, *, follows: bool = True) -> NodeProgress:
    return NodeProgress(StepRange(0, step), 1.0, follows_stop_step=follows)


def stopping(*, follows: bool = True) -> Job:
    job = running(2, 2, "a", "b")
    for name, step in (("a", 10), ("b", 12)):
        job.update(name, progress=progress(step, follows=follows))
    job.store.request_stop(1, StopRequest("preempted", "a", "preempted"))
    job.tick()
    first = job.store.stop_proposal(1)
    assert first is not None
    assert (first.number, first.step) == (0, None), "the first proposal asks for the current steps"
    for name in "ab":
        job.update(name, stop_answer=StopAnswer(0, True, None))
    return job


def test_all_ranks_get_one_stop_step_ahead_of_the_furthest() -> None:
    job = stopping()
    job.tick(0.1)
    job.tick(0.1)
    proposal = job.store.stop_proposal(1)
    assert proposal is not None
    assert proposal.number == 1
    assert proposal.step is not None
    assert proposal.step > 12


def test_a_refused_stop_step_is_replaced_by_a_later_one() -> None:
    job = stopping()
    job.tick(0.1, times=2)
    refused = job.store.stop_proposal(1)
    assert refused is not None
    assert refused.step is not None
    job.update("b", stop_answer=StopAnswer(1, False, refused.step + 5))
    job.tick(0.1, times=2)
    later = job.store.stop_proposal(1)
    assert later is not None
    assert later.step is not None
    assert (later.number, later.step > refused.step + 5) == (2, True)


def test_ranks_that_do_not_follow_a_step_get_sigterm_after_the_settling_time() -> None:
    job = stopping(follows=False)
    job.tick(0.1)
    proposal = job.store.stop_proposal(1)
    assert proposal is not None
    assert proposal.number == 0
    job.tick(SETTLE_SECONDS)
    job.tick(0.1)
    proposal = job.store.stop_proposal(1)
    assert proposal is not None
    assert (proposal.number, proposal.step) == (1, None)


def test_a_node_lost_during_a_graceful_stop_restarts_nothing() -> None:
    job = stopping()
    job.silent.add("b")
    job.tick(times=9)
    assert job.store.decision(1) is None


class Kernel(Connections):
    """What the kernel of the store's host says: which launchers have ended."""

    def __init__(self) -> None:
        super().__init__(port=0)
        self.gone: set[str] = set()

    def ended(self, members: Iterable[Member]) -> set[str]:
        del members
        return self.gone


def watched_by_kernel(*names: str) -> tuple[Job, Kernel]:
    """A job of which ``a`` holds the store, with the default node timeout of 180 s."""
    job, kernel = Job(len(names), len(names)), Kernel()
    job.rules = replace(job.rules, node_timeout=180.0)
    job.join(*names)
    job.coordinators["a"] = Coordinator(
        JobStore(job.shared, "job"),
        "a",
        job.rules,
        budget=lambda: job.budget,
        on_lost=lambda loss, attempt: job.lost.append((loss.member.node, attempt)),
        connections=kernel,
    )
    job.tick(times=2)
    job.run(1)
    job.tick()
    return job, kernel


def test_a_launcher_that_has_ended_is_lost_at_once_and_one_out_of_sight_by_patience() -> None:
    job, kernel = watched_by_kernel("a", "b", "c")
    job.silent.add("b")
    job.tick(times=100)
    assert job.store.decision(1) is None, "its host may be cut off"
    kernel.gone.add("b")
    job.tick()
    assert job.store.decision(1) is not None
    assert job.lost == [("b", 1)]


def test_nothing_is_lost_while_ranks_make_progress() -> None:
    job, _ = watched_by_kernel("a", "b", "c")
    job.silent.add("b")
    for work in range(300):
        job.update("c", progress=NodeProgress(work=work))
        job.tick()
    assert job.store.decision(1) is None
    job.tick(times=170)
    assert job.store.decision(1) is None
    job.tick(times=12)
    assert job.lost == [("b", 1)]


def test_a_coordinator_that_sees_none_of_several_is_itself_cut_off() -> None:
    job, _ = watched_by_kernel("a", "b", "c")
    job.silent |= {"b", "c"}
    job.tick(times=185)
    decision = job.store.decision(1)
    assert decision is not None
    assert job.lost == [("a", 1)]
    assert "node a on host-a is cut off" in decision.reason


def test_an_attempt_that_has_ended_waits_for_nobody_out_of_sight() -> None:
    job, _ = watched_by_kernel("a", "b")
    job.join("c")
    job.tick()
    job.silent.add("b")
    job.tick(times=3)
    job.store.end_attempt(1, AttemptDecision(RESTART, "a rank crashed"), by="a", budget=job.budget)
    job.end(1)
    job.tick(times=8)
    assert job.store.roster(2).active == ("a", "c")


def test_the_launcher_that_holds_the_store_coordinates_whoever_came_first() -> None:
    job = running(2, 2, "a", "b")
    assert job.leaders == ["a"]
    job.coordinators["b"] = Coordinator(
        JobStore(job.shared, "job"), "b", job.rules, budget=lambda: job.budget, on_lost=print, connections=Kernel()
    )
    job.tick(times=2)
    assert job.leaders == ["b"]
