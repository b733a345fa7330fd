"""How the launchers of a job come to one ruling."""

from __future__ import annotations

from rankwatch_launcher.agent.torch_compat import Store, TCPStore
from rankwatch_launcher.coordination.attempt_log import Ledger
from rankwatch_launcher.coordination.decisions import (
    FAIL,
    RESTART,
    STOP,
    Budget,
    Proposal,
    Reached,
    Ruling,
    StopRequest,
)
from rankwatch_launcher.job.outcome import CODE_DO_NOT_REQUEUE


def store() -> Store:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def end(ledger: Ledger, attempt: int, reason: str, by: str, *, max_restarts: int = 1, **more: bool) -> Ruling:
    return ledger.end_attempt(attempt, RESTART, reason, by=by, budget=Budget(max_restarts), **more)


def test_the_first_to_see_it_rules_and_one_restart_is_counted() -> None:
    shared = store()
    a, b = Ledger(shared, "job"), Ledger(shared, "job")
    attempt = 1
    assert b.ruling(attempt) is None
    first = end(a, attempt, "rank 3 crashed", "a")
    second = end(b, attempt, "rank 0 lost its peer", "b")
    assert first == second == b.ruling(attempt)
    assert (first.verdict, first.reason, first.by, first.used) == (RESTART, "rank 3 crashed", "a", 1)


def test_the_budget_ends_the_job_for_all() -> None:
    shared = store()
    a, b = Ledger(shared, "job"), Ledger(shared, "job")
    assert end(a, 0, "x", "a").verdict == RESTART
    attempt = 1
    last = end(b, attempt, "y", "b")
    assert (last.verdict, last.reason) == (FAIL, "y; all 1 restarts are used up (--max-restarts)")
    assert end(a, attempt, "z", "a") == last


def test_regrouping_costs_nothing() -> None:
    ledger = Ledger(store(), "job")
    for attempt in range(3):
        ruling = end(ledger, attempt, "a node joins", "a", max_restarts=0, counted=False, fault=False)
        assert (ruling.verdict, ruling.used, ruling.fault) == (RESTART, 0, False)


def test_a_stop_holds_against_a_crash_that_it_causes() -> None:
    shared = store()
    a, b = Ledger(shared, "job"), Ledger(shared, "job")
    a.end_attempt(1, STOP, "a person's order", by="a", budget=Budget(3))
    assert end(b, 1, "rank 0 lost its peer", "b").verdict == STOP


def test_jobs_in_one_store_do_not_meet() -> None:
    shared = store()
    end(Ledger(shared, "one"), 1, "x", "a")
    assert Ledger(shared, "two").ruling(1) is None


def test_facts_are_found_or_not() -> None:
    ledger = Ledger(store(), "job")
    assert ledger.find("monitor") is None
    ledger.publish("monitor", {"url": "http://h"})
    assert ledger.find("monitor") == {"url": "http://h"}
    assert (ledger.count("parted"), ledger.count("parted", 0)) == (1, 1)


def went(ledger: Ledger, attempt: int, first: int, iteration: int, *, vain: int = 3) -> Ruling:
    budget = Budget(100, vain)
    reached = Reached(first, iteration)
    return ledger.end_attempt(attempt, RESTART, "rank 1 crashed", by="a", budget=budget, reached=reached)


def test_attempts_that_get_no_further_end_the_job_with_its_own_exit_code() -> None:
    ledger = Ledger(store(), "job")
    assert went(ledger, 1, 0, 99).verdict == RESTART
    assert [went(ledger, n, 90, 99).verdict for n in (2, 3)] == [RESTART, RESTART]
    last = went(ledger, 4, 90, 95)
    assert (last.verdict, last.code, last.used) == (FAIL, CODE_DO_NOT_REQUEUE, 3)
    assert last.reason == "rank 1 crashed; 3 attempts in a row got no further than step 99 (--max-no-progress 3)"
    assert ledger.furthest() == 99


def test_their_silent_twins_that_get_further_each_time_do_not() -> None:
    ledger = Ledger(store(), "job")
    for n in range(1, 10):
        assert went(ledger, n, 10 * n, 10 * n + 15).verdict == RESTART


def test_a_count_that_begins_anew_in_each_attempt_is_no_sign_of_standing_still() -> None:
    ledger = Ledger(store(), "job")
    # The script counts from 0 after each checkpoint: 30 steps, then 8, 12, 9 ... more.
    assert [went(ledger, n, 0, i).verdict for n, i in enumerate((29, 7, 11, 8, 15, 3), 1)] == [RESTART] * 6
    # The very same step three times more is one.
    assert [went(ledger, n, 0, 3).verdict for n in (7, 8, 9)] == [RESTART, RESTART, FAIL]


def test_attempts_of_which_nothing_is_known_are_not_judged() -> None:
    ledger = Ledger(store(), "job")
    for n in range(1, 6):
        assert ledger.end_attempt(n, RESTART, "x", by="a", budget=Budget(100, 3)).verdict == RESTART


def test_the_first_to_ask_for_a_stop_is_followed_and_a_later_proposal_replaces_an_earlier_one() -> None:
    shared = store()
    a, b = Ledger(shared, "job"), Ledger(shared, "job")
    assert (a.stop_request(1), a.proposal(1)) == (None, None)
    first = StopRequest("preempted: n0 got SIGTERM", "n0", "preempted")
    a.ask_to_stop(1, first)
    b.ask_to_stop(1, StopRequest("another", "n1", "stopped"))
    assert b.stop_request(1) == first
    a.propose(1, Proposal(1, 40, first))
    a.propose(1, Proposal(2, 60, first))
    assert b.proposal(1) == Proposal(2, 60, first)
    assert b.proposal(2) is None
