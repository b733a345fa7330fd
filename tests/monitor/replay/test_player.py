"""Playing leaves out ticks in which nothing can happen: what is decided must be the same, and at the same time."""

from __future__ import annotations

from typing import Any

import pytest

from rankwatch.contract.messages import NodeRegistration
from rankwatch_monitor.core.effects import Changed, Effect
from rankwatch_monitor.core.events import PolicyChanged, RankIdentity, RankReport
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.replay.player import JobPlayer, RecordingPlayer
from rankwatch_monitor.replay.recording import Entry, beginning
from support.simulator.outcome import Simulation
from support.simulator.plan import Fault, FaultKind, Plan
from support.simulator.scene import Scene

SCENES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "healthy": ({"evaluate_every": 40, "evaluation": 60.0, "stall_every": 25}, {}),
    "relaunched": ({"relaunch_every": 60, "compilation": 60.0}, {"first_time_timeout": 50.0}),
    "hang": ({"faults": (Fault(FaultKind.HANG, (1,), 40),)}, {}),
    "configured": ({"faults": (Fault(FaultKind.STOP, (1,), 40),)}, {"section_timeouts": {"step": 8.0}}),
    "passing": ({"faults": (Fault(FaultKind.GIL, (1,), 40, seconds=30.0),)}, {}),
    "silent": ({"faults": (Fault(FaultKind.NETWORK, (1,), 40),), "launchers": False}, {"silence_timeout": 20.0}),
    "node": ({"faults": (Fault(FaultKind.NODE_LOST, (3,), 40),), "interval": 5.0}, {}),
    "killed": ({"faults": (Fault(FaultKind.KILL, (1,), 40),)}, {}),
    "absent": ({"faults": (Fault(FaultKind.NEVER_STARTED, (1,)),)}, {"initial_heartbeat_timeout": 30.0}),
    "watched": ({"faults": (Fault(FaultKind.HANG, (1,), 40),), "launchers": False}, {}),
    "patient": ({"faults": (Fault(FaultKind.HANG, (1,), 150),), "launchers": False, "seconds": 500.0}, {}),
}


def decided(name: str, *, every_tick: bool) -> tuple[list[tuple[float, str]], int]:
    """All that is decided in a scene, with its time, and how often the core was asked."""
    habits, policy = SCENES[name]
    reported: list[tuple[float, str]] = []

    def note(at: float, effect: Effect) -> None:
        what = effect.message if isinstance(effect, Changed) else f"{effect.directive.id} {effect.directive.kind}"
        reported.append((round(at, 6), what))

    plan = Plan(**{"world": 4, "nodes": 2, "seconds": 200.0, "compilation": 5.0, **habits})
    performance = Simulation(
        Scene(plan), {"confirmation_window": 60.0, **policy}, every_tick=every_tick, on_effect=note
    )
    performance.run()
    return reported, performance.judged


@pytest.mark.parametrize("name", SCENES)
def test_the_ticks_that_are_left_out_do_not_matter(name: str) -> None:
    (every, many), (some, few) = decided(name, every_tick=True), decided(name, every_tick=False)
    assert some == every
    assert few < many / 2
    assert some or name == "healthy"


def report(rank: int, **reported: Any) -> RankReport:
    return RankReport(RankIdentity("job", rank, world_size=2, instance=f"i{rank}"), **reported)


def test_a_day_in_which_nothing_comes_costs_nothing() -> None:
    reported: list[tuple[str, float]] = []
    replay = RecordingPlayer(lambda job, at, effect: reported.append((job.id, at)))
    replay.play([Entry(100.0, "job", report(rank, iteration=3)) for rank in range(2)] + [Entry(90_000.0)])
    assert not reported
    assert replay.jobs["job"].due > 90_000.0


def test_a_tick_shortly_before_an_event_is_played_before_it() -> None:
    """The monitor's ticks drift: here the hang was found at 100.162, just after the grid of the tick before."""
    found: list[float] = []
    replay = RecordingPlayer(lambda job, at, effect: found.append(at), policy={"section_timeouts": {"step": 2.0}})
    overdue = [report(rank, iteration=3, open_sections={"step": 3.0}) for rank in range(2)]
    replay.play(
        [
            Entry(100.1, "job", report(0, iteration=3), ticked=100.06),
            Entry(100.1, "job", report(1, iteration=3), ticked=100.06),
            *(Entry(100.161, "job", each, ticked=100.06) for each in overdue),
            Entry(100.170, "job", report(0, iteration=4), ticked=100.162),
        ]
    )
    assert found == [100.162]


def test_silence_is_judged_at_its_time_although_nothing_comes() -> None:
    reported: list[float] = []
    replay = RecordingPlayer(lambda job, at, effect: reported.append(at))
    entries = [Entry(100.0, "job", report(0, iteration=3))]
    entries += [Entry(100.0 + i, "job", report(1, iteration=3)) for i in range(100)]
    replay.play(entries)
    assert reported
    assert 160.0 < reported[0] <= 160.2


def test_another_policy_shows_what_would_have_happened() -> None:
    entries = [Entry(100.0 + i, "job", report(i % 2, open_sections={"step": float(i)})) for i in range(60)]

    def opened(**policy: Any) -> list[float]:
        found: list[float] = []
        RecordingPlayer(lambda job, at, effect: found.append(at), policy=policy).play(entries)
        return found

    assert not opened()
    assert 120.0 < opened(section_timeouts={"step": 20.0})[0] < 122.0
    assert not opened(section_timeouts={"step": 20.0}, detection=False)


def test_a_policy_given_to_the_replay_holds_against_what_was_recorded() -> None:
    job = Job("job", 100.0)
    player = JobPlayer(job, 100.0, {"silence_timeout": 7.0})
    player.apply(NodeRegistration("n", "h", 1, 2, policy={"silence_timeout": 99.0, "max_restarts": 8}), 100.0)
    assert (job.policy.silence_timeout, job.policy.max_restarts) == (7.0, 8)
    effects = player.apply(PolicyChanged(job.policy.changed({"silence_timeout": 50.0, "max_restarts": 1})), 101.0)
    assert (job.policy.silence_timeout, job.policy.max_restarts) == (7.0, 1)
    assert len(effects) == 1, "the launchers are told"


def test_what_the_core_refuses_is_counted() -> None:
    player = JobPlayer(Job("job", 100.0), 100.0)
    assert player.apply(NodeRegistration("n", "h", 1, 2, policy={"nonsense": 1}), 100.0) == []
    assert player.refused == 1


def test_a_job_that_is_reported_again_goes_on_and_a_new_one_begins_again() -> None:
    replay = RecordingPlayer(lambda job, at, effect: None)
    first = Job("job", 90.0)
    replay.play([beginning(first, 100.0), Entry(100.0, "job", report(0)), beginning(first, 101.0)])
    assert replay.jobs["job"].job.instrumented
    replay.play([beginning(Job("job", 102.0), 102.0)])
    assert not replay.jobs["job"].job.instrumented


def test_a_job_that_cannot_be_taken_up_is_an_error_with_its_name() -> None:
    with pytest.raises(ValueError, match="job broken cannot be loaded"):
        RecordingPlayer(lambda job, at, effect: None).play([Entry(1.0, "broken", began={"id": "broken"})])
