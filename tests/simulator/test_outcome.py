"""Each kind of fault is found and its ranks are named; the same scene without it raises nothing."""

from __future__ import annotations

from typing import Any

import pytest

from support.simulator.outcome import Outcome, evaluate
from support.simulator.plan import Fault, FaultKind, Plan
from support.simulator.scene import Scene

CONFIGURED = {"section_timeouts": {"step": 15.0}}
PATIENCE = {"confirmation_window": 60.0, "longest_patience": 60.0}
"""How long it lasts is tested elsewhere (core/incident/test_patience.py)."""


def played(*faults: Fault, policy: dict[str, Any] | None = None, **habits: Any) -> Outcome:
    """A small job with these faults, judged."""
    plan = Plan(**{"world": 8, "nodes": 4, "seconds": 250.0, "faults": faults, **habits})
    return evaluate(Scene(plan), {**PATIENCE, **(policy or {})})


def silent(policy: dict[str, Any] | None = None, **habits: Any) -> None:
    """The same job in good health: no alarm, no suspicion, no restart."""
    outcome = played(policy=policy, **habits)
    assert outcome.events > 500
    assert (outcome.alarms, outcome.suspicions, outcome.restarts, outcome.false_alarms) == (0, 0, 0, [])


def found(outcome: Outcome, within: float, *, exactly: bool = True) -> None:
    """One fault, found in time with the right ranks (``exactly``: with all of them), and nothing else."""
    (finding,) = outcome.findings
    assert finding.incident is not None, "it was missed"
    assert finding.right or not exactly, f"named {finding.named} as {finding.classes}: {finding.reason}"
    assert finding.first_right
    assert finding.latency is not None
    assert finding.latency <= within, finding.reason
    assert not outcome.false_alarms


AT_ONCE = {FaultKind.KILL: 1.0, FaultKind.EXIT: 1.0}
ELSEWHERE = (FaultKind.NETWORK, FaultKind.NEVER_STARTED)
"""Found by silence alone, and only where no launcher speaks."""


@pytest.mark.parametrize("kind", [k for k in FaultKind if k not in ELSEWHERE])
@pytest.mark.parametrize("policy", [{}, CONFIGURED], ids=["learned", "configured"])
def test_each_kind_of_fault_is_found_and_its_ranks_are_named(kind: FaultKind, policy: dict[str, Any]) -> None:
    limit = 15.0 if policy else 10.0
    within = AT_ONCE.get(kind) or limit + 3.0
    # At the limit that a person set nobody has been silent yet, and the last words of a lost node differ in age.
    exactly = not (kind is FaultKind.NODE_LOST and policy)
    found(played(Fault(kind, (5,), step=60), policy=policy), within, exactly=exactly)


def test_a_rank_whose_words_are_lost_is_silent_only_where_no_launcher_speaks_for_it() -> None:
    cut = Fault(FaultKind.NETWORK, (5,), step=60)
    found(played(cut, launchers=False, policy={"silence_timeout": 61.0}), 63.0)
    outcome = played(cut)
    assert (outcome.alarms, outcome.suspicions, outcome.restarts) == (0, 0, 0)


@pytest.mark.parametrize("policy", [{}, CONFIGURED], ids=["learned", "configured"])
def test_the_same_job_in_good_health_raises_nothing(policy: dict[str, Any]) -> None:
    silent(policy)


def test_a_rank_that_never_started_is_found_and_one_that_starts_late_is_not() -> None:
    policy = {"initial_heartbeat_timeout": 100.0}
    found(played(Fault(FaultKind.NEVER_STARTED, (2,)), policy=policy), 110.0)
    late = played(Fault(FaultKind.STOP, (2,), section="setup", seconds=80.0), policy=policy)
    assert late.alarms == 0


@pytest.mark.parametrize("kind", [FaultKind.HANG, FaultKind.STOP, FaultKind.UNINTERRUPTIBLE])
def test_several_ranks_are_named_together(kind: FaultKind) -> None:
    found(played(Fault(kind, (1, 6), step=60)), 13.0)


@pytest.mark.parametrize("seed", range(3))
def test_it_does_not_depend_on_the_rank(seed: int) -> None:
    found(played(Fault(FaultKind.HANG, (seed * 3,), step=45), seed=seed), 13.0)


@pytest.mark.parametrize("section", ["data", "forward", "backward"])
def test_all_of_them_stuck_in_the_same_place_names_no_rank(section: str) -> None:
    found(played(Fault(FaultKind.STALL, step=60, section=section)), 13.0)


HABITS: dict[str, dict[str, Any]] = {
    "checkpointing": {"checkpoint_every": 30, "checkpoint": 40.0},
    "evaluation": {"evaluate_every": 40, "evaluation": 90.0},
    "data": {"stall_every": 30, "stall": 50.0},
    "forward": {"compilation": 100.0, "relaunch_every": 120, "interval": 5.0, "policy": {"first_time_timeout": 300.0}},
}
"""Pauses that are none of anybody's business, by the section that they are spent in."""
FEW = {"world": 4, "nodes": 2}
ONSET = {"checkpointing": 100, "evaluation": 119, "data": 130, "forward": 0}
"""Where the hang strikes: after the section is known, but for the compilation, of which nothing is."""
SECONDS = {"checkpointing": 700.0, "evaluation": 500.0, "data": 700.0, "forward": 750.0}
WITHIN = {"checkpointing": 260.0, "evaluation": 60.0, "data": 260.0, "forward": 650.0}


@pytest.mark.parametrize("section", HABITS)
def test_a_hang_inside_of_a_long_pause_is_found(section: str) -> None:
    """The limit that is judged by is five times the longest run, so that much later, and no later than that."""
    fault = Fault(FaultKind.HANG, (3,), step=ONSET[section], section=section)
    found(played(fault, seconds=SECONDS[section], **FEW, **HABITS[section]), WITHIN[section])


@pytest.mark.parametrize("section", HABITS)
def test_long_pauses_alone_are_no_alarm(section: str) -> None:
    outcome = played(seconds=SECONDS[section], **FEW, **HABITS[section])
    assert outcome.alarms == 0, outcome.false_alarms
    assert bool(outcome.restarts) == (section == "forward")


def test_a_pause_never_seen_before_is_a_suspicion_and_no_alarm() -> None:
    outcome = played(Fault(FaultKind.HANG, (3,), step=60, seconds=50.0))
    assert (outcome.alarms, outcome.suspicions, outcome.restarts) == (0, 1, 0)
    assert outcome.findings == []


def test_the_job_goes_on_after_a_restart() -> None:
    """Two faults, one after the other in two attempts, are two incidents with nothing between them."""
    faults = (Fault(FaultKind.HANG, (3,), step=60), Fault(FaultKind.STOP, (4,), step=90, attempt=2))
    outcome = played(*faults, seconds=700.0, checkpoint_every=50)
    assert [finding.right for finding in outcome.findings] == [True, True]
    assert (outcome.alarms, outcome.restarts) == (2, 2)


def test_a_job_without_a_launcher_is_watched_all_the_same() -> None:
    outcome = played(Fault(FaultKind.HANG, (3,), step=60), launchers=False)
    (finding,) = outcome.findings
    assert finding.incident is not None
    assert finding.first_right
    assert outcome.restarts == 0
    silent(launchers=False)


def test_a_node_that_the_launchers_give_up_is_named_at_once_and_costs_one_restart() -> None:
    outcome = played(Fault(FaultKind.NODE_LOST, (3,), step=60), gives_up=5.0)
    found(outcome, within=5.5)
    (finding,) = outcome.findings
    assert (finding.named, set(finding.classes)) == ((2, 3), {"host_silent"})
    assert finding.reason == "Node host-1 is lost with ranks 2, 3: no heartbeat of its launcher for 5.0 s."
    assert outcome.restarts == 1
    silent(gives_up=5.0)
