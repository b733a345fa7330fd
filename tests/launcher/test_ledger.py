"""How the launchers of a job come to one ruling."""

from __future__ import annotations

from rankwatch_launcher.ledger import FAIL, RESTART, STOP, Ledger, Ruling
from rankwatch_launcher.torch_seams import Store, TCPStore


def store() -> Store:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def end(ledger: Ledger, attempt: int, reason: str, by: str, *, max_restarts: int = 1, **more: bool) -> Ruling:
    return ledger.end_attempt(attempt, RESTART, reason, by=by, max_restarts=max_restarts, **more)


def test_the_first_to_see_it_rules_and_one_restart_is_counted() -> None:
    shared = store()
    a, b = Ledger(shared, "job"), Ledger(shared, "job")
    attempt = a.next_attempt()
    assert b.ruling(attempt) is None
    first = end(a, attempt, "rank 3 crashed", "a")
    second = end(b, attempt, "rank 0 lost its peer", "b")
    assert first == second == b.ruling(attempt)
    assert (first.verdict, first.reason, first.by, first.used) == (RESTART, "rank 3 crashed", "a", 1)


def test_the_budget_ends_the_job_for_all() -> None:
    shared = store()
    a, b = Ledger(shared, "job"), Ledger(shared, "job")
    assert end(a, a.next_attempt(), "x", "a").verdict == RESTART
    attempt = a.next_attempt()
    last = end(b, attempt, "y", "b")
    assert (last.verdict, last.reason) == (FAIL, "y; all 1 restarts are used up (--max-restarts)")
    assert end(a, attempt, "z", "a") == last


def test_regrouping_costs_nothing() -> None:
    ledger = Ledger(store(), "job")
    for _ in range(3):
        ruling = end(ledger, ledger.next_attempt(), "a node joins", "a", max_restarts=0, counted=False, fault=False)
        assert (ruling.verdict, ruling.used, ruling.fault) == (RESTART, 0, False)


def test_a_stop_holds_against_a_crash_that_it_causes() -> None:
    shared = store()
    a, b = Ledger(shared, "job"), Ledger(shared, "job")
    a.end_attempt(1, STOP, "a person's order", by="a", max_restarts=3)
    assert end(b, 1, "rank 0 lost its peer", "b").verdict == STOP


def test_jobs_in_one_store_do_not_meet() -> None:
    shared = store()
    end(Ledger(shared, "one"), 1, "x", "a")
    assert Ledger(shared, "two").ruling(1) is None


def test_facts_are_found_or_not() -> None:
    ledger = Ledger(store(), "job")
    assert ledger.find("monitor", 0.0) is None
    ledger.publish("monitor", {"url": "http://h"})
    assert ledger.find("monitor", 0.0) == {"url": "http://h"}
    assert (ledger.count("parted"), ledger.count("parted", 0)) == (1, 1)
