"""Scenes: in order, repeatable, and saying what real ranks and launchers say."""

from __future__ import annotations

from itertools import islice, pairwise

from rankwatch.contract.enums import ProcessEventKind, ProcessState
from rankwatch.contract.limits import RankLimits
from rankwatch.contract.messages import Evidence, NodeObservation, NodeRegistration, ProcessEvent
from rankwatch_monitor.core.events import JobEvent, RankReport
from support.simulator.plan import Fault, FaultKind, Plan
from support.simulator.scene import START, Arrival, Scene

SMALL = {"world": 4, "nodes": 2, "seconds": 120.0, "compilation": 5.0, "checkpoint_every": 20, "checkpoint": 3.0}


def arrivals(*faults: Fault, limits: RankLimits | None = None, **habits: object) -> list[Arrival]:
    scene = Scene(Plan(**{**SMALL, "faults": faults, **habits}))  # type: ignore[arg-type]
    if limits is not None:
        scene.push_settings(limits.to_settings(), START)
    return list(scene.events())


def reports(of: list[Arrival], rank: int) -> list[tuple[float, RankReport]]:
    return [(at, e) for at, e in of if isinstance(e, RankReport) and e.identity.rank == rank]


def of_kind(of: list[Arrival], kind: type[JobEvent]) -> list[JobEvent]:
    return [e for _, e in of if isinstance(e, kind)]


def test_a_scene_is_in_order_and_the_same_each_time() -> None:
    first, again, other = arrivals(seed=1), arrivals(seed=1), arrivals(seed=2)
    assert first == again
    assert first != other
    assert len(first) > 400
    assert all(a[0] <= b[0] for a, b in pairwise(first))


def test_it_is_made_while_it_is_read() -> None:
    scene = Scene(Plan(world=8, seconds=1e9))
    assert len(list(islice(scene.events(), 1000))) == 1000


def test_a_healthy_job_states_all_that_real_ones_do() -> None:
    reported = arrivals()
    assert len(of_kind(reported, NodeRegistration)) == 2
    kinds = [e.kind for e in of_kind(reported, ProcessEvent) if isinstance(e, ProcessEvent)]
    assert kinds.count(ProcessEventKind.STARTED) == 4
    assert kinds.count(ProcessEventKind.FINISHED) == 2
    assert all(not e.ranks for e in of_kind(reported, NodeObservation) if isinstance(e, NodeObservation))
    mine = [report for _, report in reports(reported, 2)]
    steps = [report.iteration for report in mine if report.iteration is not None]
    assert steps == sorted(steps)
    assert steps[-1] > 60
    assert mine[-1].ended
    finished = sum(report.finished["step"].count for report in mine if "step" in report.finished)
    assert finished == steps[-1] + 1, "every step is reported once"
    assert any("checkpointing" in (report.open_sections or {}) for report in mine)
    assert next(report.first_time for report in mine if report.open_sections) == ("setup",)
    assert not any("step" in report.first_time for report in mine if (report.iteration or 0) > 2)


def test_longest_runs_are_reported_when_they_grow_and_once_a_minute() -> None:
    mine = reports(arrivals(), 1)
    first = [(at, report.first_durations) for at, report in mine if report.first_durations]
    assert {"setup", "step", "forward"} <= set().union(*(set(d) for _, d in first))
    longest = [report.longest["step"] for _, report in mine if "step" in report.longest]
    assert len(longest) < len(mine) / 2
    everything = [at for at, report in mine if len({*report.longest, *report.first_durations}) >= 6]
    assert len(everything) >= 1


def test_a_hung_rank_stays_where_it_is_and_the_others_wait_ahead_of_it() -> None:
    reported = arrivals(Fault(FaultKind.HANG, (3,), step=30))
    (at, hung), (then, waiting) = reports(reported, 3)[-1], reports(reported, 0)[-1]
    assert set(hung.open_sections or {}) == {"step", "forward"}
    assert set(waiting.open_sections or {}) == {"step", "backward"}
    assert (hung.iteration, waiting.iteration) == (29, 29)
    assert (hung.progress or 0) < (waiting.progress or 0)
    assert hung.quiet is not None
    assert waiting.quiet is not None
    assert waiting.quiet > 30
    assert at - hung.quiet < then - waiting.quiet, "it stopped before the others did"


def test_a_rank_speaks_at_once_when_it_passes_a_limit_that_it_knows() -> None:
    limit = RankLimits(sections={"step": 7.0})
    for interval in (1.0, 10.0):
        reported = arrivals(Fault(FaultKind.HANG, (3,), step=30), limits=limit, interval=interval)
        for rank in range(4):
            past = [r for _, r in reports(reported, rank) if (r.open_sections or {}).get("step", 0.0) > 7.0]
            assert past[0].open_sections is not None
            assert past[0].open_sections["step"] < 7.02


def test_a_stopped_rank_is_spoken_for() -> None:
    reported = arrivals(Fault(FaultKind.STOP, (3,), step=30))
    seen = [
        (at, each)
        for at, e in reported
        if isinstance(e, NodeObservation)
        for each in e.ranks
        if each.process_state is ProcessState.STOPPED
    ]
    assert {each.rank for _, each in seen} == {3}
    assert max(b[0] - a[0] for a, b in pairwise(seen)) < 0.6
    struck = seen[0][0]
    assert not [at for at, _ in reports(reported, 3) if at > struck + 1.0]


def test_a_dead_rank_is_reported_with_its_signal_and_the_job_is_restarted() -> None:
    reported = arrivals(Fault(FaultKind.KILL, (3,), step=30))
    events = [e for e in of_kind(reported, ProcessEvent) if isinstance(e, ProcessEvent)]
    exits = [e for e in events if e.kind is ProcessEventKind.EXITED]
    assert [(e.rank, e.signal) for e in exits] == [(3, "SIGKILL")]
    assert sum(e.kind is ProcessEventKind.RESTARTING for e in events) == 2
    assert {s.rank for e in of_kind(reported, Evidence) if isinstance(e, Evidence) for s in e.stacks} == {2}
    second = [r for _, r in reports(reported, 0) if r.identity.attempt == 2 and r.first_iteration is not None]
    assert second[0].first_iteration == 20, "the step after the last checkpoint"


def test_a_lost_node_reports_nothing_more() -> None:
    reported = arrivals(Fault(FaultKind.NODE_LOST, (3,), step=30))
    last = {rank: reports(reported, rank)[-1][0] for rank in range(4)}
    assert last[2] < START + 60
    assert last[3] < START + 60
    assert last[0] > START + 110
    observed = [at for at, e in reported if isinstance(e, NodeObservation) and e.node == "node-1"]
    assert max(observed) < START + 60
