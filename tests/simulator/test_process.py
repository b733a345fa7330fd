"""The model of a process on which all simulated jobs stand."""

from __future__ import annotations

import pytest

from rankwatch.contract.enums import ProcessState
from rankwatch_monitor.core.events import RankIdentity
from support.simulator.plan import FaultKind
from support.simulator.process import Position, Process


def test_a_rank_that_moves_apart_does_not_follow_the_others() -> None:
    shared = Position(10.0)
    shared.enter("step", 11.0)
    apart = shared.copy()
    shared.enter("forward", 12.0)
    assert shared.leave(13.0) == ("forward", 1.0)
    shared.leave(14.0)
    shared.complete_step(0, 14.0)
    assert (apart.opened, apart.moved_at, apart.first_time) == ({"step": 11.0}, 11.0, ("step",))
    assert (apart.iteration, apart.progress, apart.beats, apart.completed) == (None, 0, 0, set())


def test_a_section_is_entered_for_the_first_time_once() -> None:
    at = Position(0.0)
    for first in (("save",), ()):
        at.enter("save", 1.0)
        assert at.first_time == first
        at.leave(2.0)


@pytest.mark.parametrize(
    ("fault", "arrives", "state", "age"),
    [
        (None, True, ProcessState.ALIVE, 0.1),
        (FaultKind.HANG, True, ProcessState.ALIVE, 0.1),
        (FaultKind.STOP, False, ProcessState.STOPPED, 5.0),
        (FaultKind.GIL, False, ProcessState.ALIVE, 5.0),
        (FaultKind.KILL, False, ProcessState.EXITED, 0.1),
    ],
)
def test_what_arrives_and_what_is_seen_of_a_fault(
    fault: FaultKind | None, arrives: bool, state: ProcessState, age: float
) -> None:
    process = Process(3, RankIdentity("job", 3, pid=7), Position(0.0), fault, fault_at=1.0)
    seen = process.observation(6.0)
    assert (process.exports_arrive, seen.process_state, seen.pulse_age) == (arrives, state, age)
    assert seen.quiet == process.report(6.0).quiet == 6.0
