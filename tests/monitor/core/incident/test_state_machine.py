"""The incident's state machine: its table, its rows, and that nothing else writes an incident."""

from __future__ import annotations

import ast
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Final

import pytest

import rankwatch_monitor
from rankwatch.contract.enums import Action, Proof, VerdictKind
from rankwatch.contract.node_checks import CheckResult, CheckState
from rankwatch_monitor.core.cause import Shown, Some
from rankwatch_monitor.core.incident import state_machine as machine
from rankwatch_monitor.core.incident.state_machine import ANY, OPEN, TABLE, Row, transition
from rankwatch_monitor.core.incident_record import Ended, Incident, NodeChecked, Notice, Phase, Timeline, Withheld

NOW: Final = 1000.0
NOTICE: Final = Notice(VerdictKind.WRONG_RESULT, 2, "host-1", "The loss is NaN.", 1.0, NOW, 1)
EVENTS: Final[dict[type, machine.Event]] = {
    type(event): event
    for event in (
        machine.Recorded("the policy only records", Withheld.POLICY),
        machine.Decided(Action.RESTART, "the policy is to restart"),
        machine.RecordedWithStacks("the policy only records", Withheld.POLICY),
        machine.LeftToLaunchers(Action.RESTART, "the launchers restart crashed ranks", NOW),
        machine.Ordered(Action.STOP, "an operator ordered stop", 2),
        machine.StacksTaken(),
        machine.Confirmed(),
        machine.Proved(Shown(Proof.BUSY, Some.of((0,)))),
        machine.DeadlineSet(NOW + 180.0, 42.0, 0),
        machine.StopStepRefused(),
        machine.StopTimedOut(60.0),
        machine.Unanswered(),
        machine.RefusedByAll(),
        machine.OrderRepeated(2),
        machine.AttemptBegan(2, NOW),
        machine.Closed(NOW, Ended.WENT_ON, "the ranks went on by themselves"),
        machine.Rediagnosed(machine.Diagnosis(VerdictKind.NODE_LOST, "Node host-1 is lost.")),
        machine.StopNoted("the ranks were asked to stop"),
        machine.NoticeReceived(NOTICE),
        machine.Observed((0, 1), 7),
        machine.DirectiveIssued(3, None),
        machine.DirectiveRefused("node-0", "busy"),
        machine.EvidenceReceived("node-0", (), NOW),
        machine.NodeFailedChecks((NodeChecked("node-0", "host-0", CheckResult("gpu", CheckState.FAILED)),)),
    )
}
CONDITIONS: Final[dict[str, dict[str, object]]] = {
    "": {},
    "elective capture": {"action": Action.CAPTURE, "kind": VerdictKind.ORDERED},
    "only captures": {"action": Action.CAPTURE},
    "confirmed": {"action": Action.RESTART},
    "suspected": {"action": Action.RESTART, "confirmed": False},
}


def incident(phase: Phase, **values: object) -> Incident:
    made: dict[str, object] = {"kind": VerdictKind.SECTION_OVERRUN, "phase": phase, "phase_since": 1.0, **values}
    return Incident(id="i", job_id="j", attempt=1, opened_at=1.0, reason="It hangs.", **made)  # type: ignore[arg-type]


def documented() -> list[tuple[str, ...]]:
    """The rows of the table in the module's docstring, by the columns of its ruler."""
    text = (machine.__doc__ or "").splitlines()
    rulers = [n for n, line in enumerate(text) if line.startswith("===")]
    starts = [n for n, char in enumerate(text[rulers[0]]) if char == "=" and (n == 0 or text[rulers[0]][n - 1] == " ")]
    ends = [*starts[1:], None]
    rows = text[rulers[1] + 1 : rulers[2]]
    return [tuple(row[a:b].strip() for a, b in zip(starts, ends, strict=True)) for row in rows]


def as_documented(row: Row) -> tuple[str, ...]:
    phases = {OPEN: "any open", ANY: "any"}.get(row.phases, " ".join(row.phases))
    next_phase = "(same)" if row.next_phase is None else str(row.next_phase)
    return (row.event.__name__, phases, row.guard, next_phase, str(row.command or ""))


def test_the_documented_table_is_the_one_in_force() -> None:
    assert documented() == [as_documented(row) for row in TABLE]


def test_every_event_has_a_row() -> None:
    assert {row.event for row in TABLE} == set(EVENTS)


@pytest.mark.parametrize(
    ("row", "phase"),
    [
        pytest.param(row, phase, id=f"{as_documented(row)[0]}-{phase}-{row.guard}")
        for row in TABLE
        for phase in row.phases
    ],
)
def test_each_row_leads_where_it_states(row: Row, phase: Phase) -> None:
    one = incident(phase, **CONDITIONS[row.guard])
    effects = transition(one, EVENTS[row.event], NOW)
    assert one.phase is (row.next_phase or phase)
    assert one.phase_since == (1.0 if row.next_phase is None else NOW)
    assert [effect for effect in effects if isinstance(effect, machine.Command)] == [row.command] * bool(row.command)
    assert one.open is (one.closed_at is None) or phase is Phase.CLOSED


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("phase", Phase)
def test_an_event_without_a_row_is_refused_and_writes_nothing(event: machine.Event, phase: Phase) -> None:
    if any(isinstance(event, row.event) and phase in row.phases for row in TABLE):
        return
    one = incident(phase)
    before = [getattr(one, each.name) for each in fields(one)]
    with pytest.raises(AssertionError, match=str(phase)):
        transition(one, event, NOW)
    assert [getattr(one, each.name) for each in fields(one)] == before


def test_a_record_cannot_be_assigned_to() -> None:
    one = incident(Phase.DETECTED)
    with pytest.raises(FrozenInstanceError):
        one.phase = Phase.CLOSED  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        one.timeline.captured = NOW  # type: ignore[misc]


def test_only_the_state_machine_writes_an_incident() -> None:
    """No other module assigns to a field, works around the frozen dataclass, or adds to its stacks."""
    names = {each.name for each in (*fields(Incident), *fields(Timeline))}
    root = Path(rankwatch_monitor.__file__).parent
    writers = set()
    for file in (path for room in root.iterdir() if room.name != "web" for path in room.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if node.attr in names and _is_incident(node.value):
                    writers.add(file.relative_to(root).as_posix())
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                setter = node.func.attr == "__setattr__"
                adds = node.func.attr == "add" and ast.unparse(node.func.value).endswith("incident.stacks")
                if setter or adds:
                    writers.add(file.relative_to(root).as_posix())
    assert writers == {"core/incident/state_machine.py"}


def _is_incident(value: ast.expr) -> bool:
    name = ast.unparse(value)
    return name.removesuffix(".timeline").rpartition(".")[2] in ("incident", "open_incident")


def test_stacks_that_change_the_diagnosis_are_announced_whatever_the_words() -> None:
    for diagnosis, told in ((None, ""), (machine.Diagnosis(VerdictKind.SILENT, "It hangs."), "It hangs.")):
        made = incident(Phase.CAPTURING, action=Action.RESTART)
        assert [each.message for each in transition(made, machine.StacksTaken(diagnosis), NOW)[1:]] == [told]  # type: ignore[union-attr]


def test_evidence_of_a_closed_incident_is_kept() -> None:
    one = incident(Phase.CLOSED, closed_at=2.0)
    assert transition(one, EVENTS[machine.EvidenceReceived], NOW) == []
    assert list(one.stacks) == [stack.rank for stack in EVENTS[machine.EvidenceReceived].stacks]
    assert one.heard_nodes == set(), "which launchers sent theirs counts only while they are awaited"


def test_notices_of_other_ranks_join_the_first() -> None:
    one = Incident("i", "j", NOTICE.kind, 1, NOW, "")
    transition(one, machine.NoticeReceived(NOTICE), NOW)
    transition(one, machine.NoticeReceived(NOTICE._replace(rank=0)), NOW)
    assert (one.affected, [c.rank for c in one.culprits], one.phase) == ((0, 2), [2], Phase.DETECTED)


def test_the_earliest_beginning_that_was_found_counts() -> None:
    one = incident(Phase.ACTING, action=Action.RESTART)
    for since, expected in ((40.0, 40.0), (45.0, 40.0), (30.0, 30.0), (None, 30.0)):
        again = machine.Diagnosis(VerdictKind.NODE_LOST, "Node host-1 is lost.", since=since)
        transition(one, machine.Rediagnosed(again), NOW)
        assert one.timeline.since == expected
