"""When the stacks of incidents are reduced to what is shown of them."""

from __future__ import annotations

from rankwatch.contract.enums import VerdictKind
from rankwatch.contract.messages import Frame, RankStack
from rankwatch_monitor.core.hang.stacks import Stacks
from rankwatch_monitor.core.incident.state_machine import EvidenceReceived, transition
from rankwatch_monitor.core.incident_record import SETTLED_AFTER, Incident, Phase, settle


def stack(rank: int) -> RankStack:
    return RankStack(rank, 100 + rank, "py-spy", (Frame("load_batch", "/srv/me/data.py", 7),))


def incident(name: str, closed_at: float | None) -> Incident:
    over = Phase.DETECTED if closed_at is None else Phase.CLOSED
    made = Incident(name, "job", VerdictKind.SECTION_OVERRUN, 1, 0.0, "it hangs", phase=over, closed_at=closed_at)
    made.stacks.add(stack(0))
    return made


def test_stacks_are_settled_once_an_incident_is_over_and_no_more_of_them_arrive() -> None:
    earlier, over, running = incident("1", 50.0), incident("2", 100.0), incident("3", None)
    transition(over, EvidenceReceived("node-1", (stack(1),), 120.0), 120.0)
    settle([earlier, over, running], 100.0 + SETTLED_AFTER)
    assert [each.stacks.settled for each in (earlier, over, running)] == [True, False, False]
    settle([earlier, over, running], 120.0 + SETTLED_AFTER)
    assert [each.stacks.settled for each in (earlier, over, running)] == [True, True, False]
    assert over.stacks == Stacks.of([stack(0), stack(1)])


def test_stacks_that_arrive_after_all_are_kept_and_settled_again() -> None:
    over = incident("1", 100.0)
    settle([over], 200.0)
    transition(over, EvidenceReceived("node-1", (stack(1),), 210.0), 210.0)
    settle([over], 211.0)
    assert not over.stacks.settled
    settle([over], 210.0 + SETTLED_AFTER)
    assert over.stacks.settled
    assert list(over.stacks) == [0, 1]
