"""The launchers' shared state: one decision per attempt, one count of restarts, the first stop request holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from torch.distributed import HashStore

from rankwatch.contract.enums import NodeRole, NoRestart
from rankwatch_launcher.coordination import store as module
from rankwatch_launcher.coordination.decisions import (
    FAIL,
    RESTART,
    STOP,
    AttemptDecision,
    RestartBudget,
    StepRange,
    StopProposal,
    StopRequest,
)
from rankwatch_launcher.coordination.membership import Member, NodeProgress, Place, StopAnswer
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.monitor.discovery import Published
from rankwatch_launcher.outcome import CODE_DO_NOT_REQUEUE, FAILED, FINISHED, Outcome
from rankwatch_launcher.torch_compat import PrefixStore


def end(store: JobStore, attempt: int, reason: str, by: str, *, max_restarts: int = 1, **more: Any) -> AttemptDecision:
    return store.end_attempt(
        attempt, AttemptDecision(RESTART, reason, **more), by=by, budget=RestartBudget(max_restarts)
    )


def test_the_first_decision_holds_and_one_restart_is_counted() -> None:
    shared = HashStore()
    a, b = JobStore(shared, "job"), JobStore(shared, "job")
    assert b.decision(1) is None
    first = end(a, 1, "rank 3 crashed", "a", max_restarts=3)
    assert end(b, 1, "rank 0 lost its peer", "b", max_restarts=3) == first == b.decision(1)
    assert (first.verdict, first.reason, first.by, first.used) == (RESTART, "rank 3 crashed", "a", 1)
    assert a.restarts() == 1


def test_a_used_up_budget_fails_the_job_on_all_launchers() -> None:
    shared = HashStore()
    a, b = JobStore(shared, "job"), JobStore(shared, "job")
    assert end(a, 0, "x", "a").verdict == RESTART
    last = end(b, 1, "y", "b")
    assert (last.verdict, last.used) == (FAIL, 1)
    assert last.reason == "y; the only restart is used up (--max-restarts)"
    assert (last.cause, last.no_restart) == ("y", NoRestart.USED_UP), "also of the launcher that read it"
    assert end(a, 1, "z", "a") == last
    none = end(JobStore(HashStore(), "job"), 1, "x", "a", max_restarts=0)
    assert none.reason.endswith("(--max-restarts 0)")
    assert none.no_restart == NoRestart.NOT_ALLOWED


def test_regrouping_uses_no_restart() -> None:
    store = JobStore(HashStore(), "job")
    for attempt in range(3):
        decision = end(store, attempt, "a node joins", "a", max_restarts=0, counted=False, fault=False)
        assert (decision.verdict, decision.used, decision.fault) == (RESTART, 0, False)


def test_a_stop_holds_against_a_crash_that_it_causes() -> None:
    shared = HashStore()
    a, b = JobStore(shared, "job"), JobStore(shared, "job")
    a.end_attempt(1, AttemptDecision(STOP, "requested"), by="a", budget=RestartBudget(3))
    assert end(b, 1, "rank 0 lost its peer", "b").verdict == STOP


def test_jobs_in_one_store_are_separate() -> None:
    shared = HashStore()
    end(JobStore(shared, "one"), 1, "x", "a")
    assert JobStore(shared, "two").decision(1) is None


def test_facts_are_shared() -> None:
    store = JobStore(HashStore(), "job")
    assert store.find("monitor", Published) is None
    store.publish("monitor", {"job_id": "j", "url": "http://h"})
    assert store.find("monitor", Published) == Published("j", "http://h")


def test_group_rank_0_tells_the_others_that_the_ranks_of_all_nodes_have_finished() -> None:
    shared = HashStore()
    stores = [JobStore(shared, "job") for _ in range(3)]
    running = [1, 2]
    for number in (0, 2):
        stores[number].finish(1, number)
    assert not stores[0].all_finished(1, 0, running)
    assert running == [1]
    assert not stores[1].all_finished(1, 1, [])
    stores[1].finish(1, 1)
    assert not stores[2].all_finished(1, 2, [])
    assert stores[0].all_finished(1, 0, running)
    assert stores[1].all_finished(1, 1, [])
    assert not stores[1].all_finished(2, 1, [])


def test_a_member_is_read_back_as_it_was_written() -> None:
    store = JobStore(HashStore(), "job")
    progress = NodeProgress(StepRange(3, 9), 1.5, follows_stop_step=True)
    member = Member("n", "h", 2, ready_after=1, progress=progress, stop_answer=StopAnswer(1, False, 9))
    store.register(member)
    store.register(Member("m", "h", 2))
    assert store.member_names() == ["n", "m"]
    assert store.members(["m", "n"]) == [Member("m", "h", 2), member]


def test_the_first_outcome_closes_the_job() -> None:
    store = JobStore(HashStore(), "job")
    assert store.outcome() is None
    store.close(Outcome(FINISHED, 0, "done"))
    store.close(Outcome(FAILED, 1, "late"))
    assert store.outcome() == Outcome(FINISHED, 0, "done")


def ended(store: JobStore, attempt: int, first: int, furthest: int) -> AttemptDecision:
    decision = AttemptDecision(RESTART, "rank 1 crashed")
    return store.end_attempt(attempt, decision, by="a", budget=RestartBudget(100, 3), steps=StepRange(first, furthest))


def test_attempts_without_progress_fail_the_job_with_93() -> None:
    store = JobStore(HashStore(), "job")
    assert ended(store, 1, 0, 99).verdict == RESTART
    assert [ended(store, n, 90, 99).verdict for n in (2, 3)] == [RESTART, RESTART]
    last = ended(store, 4, 90, 95)
    assert (last.verdict, last.code, last.used) == (FAIL, CODE_DO_NOT_REQUEUE, 3)
    assert "--max-no-progress 3" in last.reason
    assert store.furthest_step() == 99


def test_attempts_that_get_further_each_time_do_not() -> None:
    store = JobStore(HashStore(), "job")
    for n in range(1, 10):
        assert ended(store, n, 10 * n, 10 * n + 15).verdict == RESTART


def test_a_step_count_that_restarts_in_each_attempt_counts_only_when_it_is_equal() -> None:
    store = JobStore(HashStore(), "job")
    # The script counts from 0 after each checkpoint: 30 steps, then 8, 12, 9 ... more.
    assert [ended(store, n, 0, i).verdict for n, i in enumerate((29, 7, 11, 8, 15, 3), 1)] == [RESTART] * 6
    assert [ended(store, n, 0, 3).verdict for n in (7, 8, 9)] == [RESTART, RESTART, FAIL]


def test_attempts_with_unknown_steps_are_not_judged_by_progress() -> None:
    store = JobStore(HashStore(), "job")
    for n in range(1, 6):
        decision = store.end_attempt(n, AttemptDecision(RESTART, "x"), by="a", budget=RestartBudget(100, 3))
        assert decision.verdict == RESTART


def test_the_first_stop_request_holds_and_a_later_proposal_replaces_an_earlier_one() -> None:
    shared = HashStore()
    a, b = JobStore(shared, "job"), JobStore(shared, "job")
    assert (a.stop_request(1), a.stop_proposal(1)) == (None, None)
    first = StopRequest("preempted: n0 got SIGTERM", "n0", "preempted")
    a.request_stop(1, first)
    b.request_stop(1, StopRequest("another", "n1", "stopped"))
    assert b.stop_request(1) == first
    a.propose_stop(1, StopProposal(1, 40, first))
    a.propose_stop(1, StopProposal(2, 60, first))
    assert b.stop_proposal(1) == StopProposal(2, 60, first)
    assert b.stop_proposal(2) is None


def test_what_a_newer_launcher_wrote_more_is_left_aside() -> None:
    raw = HashStore()
    store = JobStore(raw, "job")
    decided = end(store, 1, "rank 3 crashed", "a")
    request = StopRequest("preempted", "n0", "preempted")
    store.request_stop(2, request)
    store.propose_stop(2, StopProposal(1, 40, request))
    for key in ("end/1", "stop/2", "proposal/2", "progress"):
        store._set(key, {**(store._get(key, json.loads) or {}), "added later": 7})
    assert store.decision(1) == decided
    assert store.stop_request(2) == request
    assert store.stop_proposal(2) == StopProposal(1, 40, request)
    assert end(store, 3, "rank 4 crashed", "a", max_restarts=9).verdict == RESTART


def test_many_records_are_moved_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Recorded(PrefixStore):
        def multi_get(self, keys: list[str]) -> list[bytes]:
            sizes.append(len(keys))
            return super().multi_get(keys)

        def multi_set(self, keys: list[str], values: list[str]) -> None:
            sizes.append(len(keys))
            super().multi_set(keys, values)

    monkeypatch.setattr(module, "PrefixStore", Recorded)
    store = JobStore(HashStore(), "job")
    names = [f"node-{number}" for number in range(2 * module.BATCH + 1)]
    for name in names:
        store.write_member(Member(name, "h", 1))
    assert [member.node for member in store.members(names)] == names
    places = {name: Place(1, NodeRole.ACTIVE, group_rank=rank) for rank, name in enumerate(names)}
    store.publish_places(places)
    assert {name: store.place(1, name) for name in names} == places
    assert sizes == 2 * [module.BATCH, module.BATCH, 1]


# Who wrote a record ---------------------------------------------------------------------------------------------------


def test_what_is_hidden_is_read_with_the_secret_alone() -> None:
    shared = HashStore()
    own, other, open_ = JobStore(shared, "run", "secret"), JobStore(shared, "run", "x"), JobStore(shared, "run", "")
    hidden = own.hide("a token")
    assert own.reveal(hidden) == "a token"
    assert own.hide("a token") != hidden
    assert other.reveal(hidden) != "a token"
    assert JobStore(shared, "another run", "secret").reveal(hidden) != "a token"
    assert [own.reveal(each) for each in ("", "a token", "salt zz", f"{hidden}0")] == [""] * 4
    assert open_.reveal(open_.hide("a token")) == "a token"
    assert own.hide("") == ""


@pytest.mark.parametrize("forged", ["", "another secret"])
def test_what_no_launcher_of_the_job_wrote_ends_nothing(forged: str) -> None:
    shared = HashStore()
    own, attacker = JobStore(shared, "run", "secret"), JobStore(shared, "run", forged)
    if not forged:
        attacker.end_attempt(1, AttemptDecision(STOP, "forged"), by="x", budget=RestartBudget(3))
        attacker.close(Outcome(FINISHED, 0))
        attacker.request_stop(1, StopRequest("forged", "x", "stopped"))
        attacker.publish("monitor", {"job_id": "j", "url": "http://attacker"})
        attacker.register(Member("false", "h", 1))
    else:
        for key in ("end/1", "closed", "stop/1", "fact/monitor", "member/false"):
            shared.set(f"rankwatch/run/{key}", attacker._sealed(key, "{}"))
    assert (own.decision(1), own.outcome(), own.stop_request(1), own.find("monitor", Published)) == (None,) * 4
    assert own.members(["false"]) == []
    end(own, 1, "a crash", "a", max_restarts=3)
    own.close(Outcome(FAILED, 1, "a crash"))
    other = JobStore(shared, "run", "secret")
    assert other.decision(1).reason == "a crash"  # type: ignore[union-attr]
    assert other.outcome().state == FAILED  # type: ignore[union-attr]


def test_a_record_counts_under_its_own_key_only_and_text_that_is_none_is_replaced() -> None:
    shared = HashStore()
    own = JobStore(shared, "run", "secret")
    end(own, 1, "a crash", "a", max_restarts=3)
    shared.set("rankwatch/run/end/2", shared.get("rankwatch/run/end/1").decode())
    assert own.decision(2) is None
    shared.set("rankwatch/run/end/3", "junk \N{SNOWMAN}")
    assert end(own, 3, "another", "a", max_restarts=3).reason == "another"
