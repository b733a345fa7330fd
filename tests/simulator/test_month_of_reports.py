"""The simulated month judges hangs and stragglers at once: nothing is stated of a healthy job, and both are found."""

from __future__ import annotations

from dataclasses import replace

from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.events import RankReport
from support.simulator import month


def test_nothing_is_reported_of_a_healthy_job() -> None:
    judged = month.play(month.healthy(8, 0.04))
    assert judged.windows > 200
    assert (judged.outcome.alarms, judged.stragglers) == (0, 0)
    assert len(judged.memory) == month.LOOKS


def test_a_slow_rank_and_a_hung_one_are_found_in_it() -> None:
    shortest = {"longest_patience": Policy().confirmation_window}  # how long it is: core/incident/test_patience.py
    judged = month.sick(month.healthy(8, 0.04), rank=3, dose=0.1, policy=shortest)
    assert judged.named == {3}
    assert [finding.right for finding in judged.outcome.findings] == [True]
    assert judged.outcome.false_alarms == []


def test_every_rank_reports_each_window_once_and_after_its_last_step() -> None:
    plan = month.healthy(8, 0.02)
    reported: dict[int, list[int]] = {rank: [] for rank in range(plan.world)}
    for _, event in month.Month(plan).events():
        if isinstance(event, RankReport) and event.window is not None:
            assert event.iteration is not None
            assert event.window.iteration is not None
            assert event.window.iteration <= event.iteration
            reported[event.identity.rank].append(event.window.iteration)
    for steps in reported.values():
        assert len(steps) > 50
        assert steps == sorted(set(steps))
        assert {(step + 1) % month.WINDOW for step in steps} == {0}


def test_nodes_are_replaced_and_clocks_are_wrong() -> None:
    plan = month.healthy(16, 0.1)
    played = month.Month(replace(plan, relaunch_every=700))
    hosts: dict[int, set[str]] = {}
    devices: dict[int, set[str]] = {}
    errors = set()
    for at, event in played.events():
        if isinstance(event, RankReport):
            identity = event.identity
            hosts.setdefault(identity.rank, set()).add(identity.host)
            devices.setdefault(identity.rank, set()).add(identity.device)
            assert identity.started_at is not None
            errors.add(round((identity.started_at - at) / 3600))
    assert any(len(names) > 1 for names in hosts.values())
    assert any(len(names) > 1 for names in devices.values())
    assert max(errors) - min(errors) > 1
