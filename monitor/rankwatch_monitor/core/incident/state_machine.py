"""The state machine of an incident: :func:`transition` is the only writer of the record.

How this works
--------------
:mod:`.lifecycle` looks at the job and decides which event happened to the open incident. :func:`transition` looks at
the incident and the event alone: it finds the row of :data:`TABLE` for the phase and the event, writes the incident and
returns effects. An event without a row for the phase is a bug of the caller. *capture*, *act* and *tell* are commands:
the caller makes the directive, since numbers and deadlines belong to the job.

====================  ===================================  ================  ============  =========
event                 in phase                             if                next phase    command
====================  ===================================  ================  ============  =========
Recorded              detected confirming                                    detected
RecordedWithStacks    detected                                               capturing     capture
Decided               detected                                               capturing     capture
Decided               confirming                                             confirming
LeftToLaunchers       detected capturing confirming                          acting
Ordered               any open                                               capturing     capture
StacksTaken           capturing                            elective capture  closed
StacksTaken           capturing                            only captures     detected      tell
StacksTaken           capturing                            confirmed         acting        act
StacksTaken           capturing                            suspected         confirming
Confirmed             detected                                               (same)        tell
Confirmed             confirming                                             capturing     capture
Proved                detected confirming                                    (same)
DeadlineSet           confirming                                             (same)
StopStepRefused       acting                                                 (same)        act
StopTimedOut          acting                                                 acting        act
Unanswered            acting                                                 acting        act
RefusedByAll          acting                                                 detected
OrderRepeated         any open                                               acting        act
AttemptBegan          detected capturing confirming acting                   recovering
Closed                any open                                               closed
Rediagnosed           any open                                               (same)
StopNoted             any open                                               (same)
NoticeReceived        detected                                               (same)
Observed              any open                                               (same)
DirectiveIssued       any open                                               (same)
DirectiveRefused      any open                                               (same)
EvidenceReceived      any                                                    (same)
NodeFailedChecks      any open                                               (same)
====================  ===================================  ================  ============  =========

*(same)* keeps the phase and the time since when the incident is in it; a phase that is named restarts its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, assert_never

from rankwatch.cli.formatting import capital, count
from rankwatch.contract.enums import Action, VerdictKind, WaitKind
from rankwatch.contract.exits import is_consequence
from rankwatch.contract.flight import FlightDump
from rankwatch.contract.messages import LOGGED_RANKS, TRACEBACK, RankLog, RankStack, Wait
from rankwatch_monitor.core.cause import Detection, Rejected, Shown, Unnamed
from rankwatch_monitor.core.effects import Changed
from rankwatch_monitor.core.hang.stacks import of_script, site_of
from rankwatch_monitor.core.hang.verdict import Culprit, union
from rankwatch_monitor.core.incident_record import (
    MAX_WAITS,
    MOST_ANSWERS,
    MOST_ERRORS,
    MOST_NODES_CHECKED,
    Ended,
    Incident,
    NcclAnswer,
    NodeChecked,
    Notice,
    Phase,
    RankError,
    RankWait,
    Withheld,
)

# Events ---------------------------------------------------------------------------------------------------------------


class Diagnosis(NamedTuple):
    """The fault and its culprits, as known when an event happens."""

    kind: VerdictKind
    reason: str
    """One sentence; log, API, page and directive show it."""
    since: float | None = None
    found: Detection | None = None
    culprits: tuple[Culprit, ...] = ()
    why_none: Unnamed | None = None
    affected: Sequence[int] = ()
    aborted: tuple[int, ...] = ()


class Recorded(NamedTuple):
    """Nothing may be done about it, or the policy only records."""

    why: str
    withheld: Withheld | None
    diagnosis: Diagnosis | None = None


class RecordedWithStacks(NamedTuple):
    """The policy only records: stacks are captured, and nothing else is done."""

    why: str
    withheld: Withheld | None
    diagnosis: Diagnosis | None = None


class Decided(NamedTuple):
    """The policy decided on an action."""

    action: Action
    why: str
    diagnosis: Diagnosis | None = None


class LeftToLaunchers(NamedTuple):
    """The launchers act by themselves: on a crash, a lost node, a request to stop. No directive is sent."""

    action: Action
    why: str
    decided_at: float
    diagnosis: Diagnosis | None = None


class Ordered(NamedTuple):
    """An operator ordered an action, for the attempt that runs now."""

    action: Action
    why: str
    attempt: int
    exclude: tuple[str, ...] = ()
    capture_only: bool = False
    """The order is to capture stacks and the incident is suspected: it must be confirmed all the same."""


class StacksTaken(NamedTuple):
    """All launchers sent stacks, or the deadline passed."""

    diagnosis: Diagnosis | None = None
    excluded: tuple[tuple[str, ...], str] | None = None
    """Launchers that the policy's restart excludes, and why these or none; None: it excludes no node."""


class Confirmed(NamedTuple):
    """A suspicion held for the confirmation window, was proven, or passed a configured limit."""

    diagnosis: Diagnosis | None = None
    why: str = ""
    """Why the action follows; empty: as stated."""


class Proved(NamedTuple):
    """Repeated samples of the ranks show something else than before, or nothing any more (None)."""

    shown: Shown | None
    diagnosis: Diagnosis | None = None
    """Of a rank that is waited for: what the incident states instead."""


class DeadlineSet(NamedTuple):
    """When patience with a suspicion ends became known, or became another time."""

    acts_at: float | None
    cost: float | None
    attempts: int


class StopStepRefused(NamedTuple):
    """The ranks were already past the agreed stop step."""


class StopTimedOut(NamedTuple):
    """The ranks did not stop by themselves within ``deadline`` seconds."""

    deadline: float


class Unanswered(NamedTuple):
    """No launcher answered the directive for too long."""


class RefusedByAll(NamedTuple):
    """Every launcher refused the directive."""


class OrderRepeated(NamedTuple):
    """The ranks were restarted before a person's order was carried out: it holds for the new attempt."""

    attempt: int


class AttemptBegan(NamedTuple):
    """A new attempt began at ``at``, whoever began it."""

    attempt: int
    at: float


class Closed(NamedTuple):
    """The incident is over."""

    at: float
    how: Ended
    outcome: str
    first_step: float | None = None
    steps_lost: int | None = None


class Rediagnosed(NamedTuple):
    """The cause turned out to be another one while an action is under way."""

    diagnosis: Diagnosis


class StopNoted(NamedTuple):
    """The ranks were asked to save and stop while an action is under way."""

    request: str


class NoticeReceived(NamedTuple):
    """A rank reported something it handles by itself; the first notice fills the incident, others join it."""

    notice: Notice


class Observed(NamedTuple):
    """Affected ranks and progress of the incident's attempt, as known now."""

    affected: Sequence[int]
    furthest_iteration: int | None


class DirectiveIssued(NamedTuple):
    """A command became a directive."""

    number: int
    stop_step: int | None
    watch: bool = False
    """It asks the launchers to look at their ranks again and again."""


class DirectiveRefused(NamedTuple):
    """A launcher could not carry out the directive."""

    node: str
    detail: str


class EvidenceReceived(NamedTuple):
    """A launcher sent stacks; ``at`` is when they were taken."""

    node: str
    stacks: tuple[RankStack, ...]
    at: float
    look: int = 0
    """Of a watch: they were not asked for by a capture."""
    logs: tuple[RankLog, ...] = ()
    nccl: NcclAnswer | None = None
    """What NCCL answered it about the job."""
    dumps: tuple[FlightDump, ...] = ()
    """Of flight recorders, without their data, which is stored apart."""
    host: str = ""


class NodeFailedChecks(NamedTuple):
    """A launcher registered that its node fails checks."""

    checks: tuple[NodeChecked, ...]


Event = (
    Recorded
    | RecordedWithStacks
    | Decided
    | LeftToLaunchers
    | Ordered
    | StacksTaken
    | Confirmed
    | Proved
    | DeadlineSet
    | StopStepRefused
    | StopTimedOut
    | Unanswered
    | RefusedByAll
    | OrderRepeated
    | AttemptBegan
    | Closed
    | Rediagnosed
    | StopNoted
    | NoticeReceived
    | Observed
    | DirectiveIssued
    | DirectiveRefused
    | EvidenceReceived
    | NodeFailedChecks
)

# Table ----------------------------------------------------------------------------------------------------------------


class Command(StrEnum):
    """A directive that the caller is to make."""

    CAPTURE = "capture"
    ACT = "act"
    TELL = "tell"
    """The people at the launchers' consoles, since no action follows that would show there."""


SAME_END: Final = 2.0
"""Seconds by which the end of one sleep may differ between two looks."""
ANY: Final = tuple(Phase)
OPEN: Final = tuple(phase for phase in Phase if phase is not Phase.CLOSED)
_CAPTURING, _ACTING = (Phase.CAPTURING,), (Phase.ACTING,)

GUARDS: Final[dict[str, Callable[[Incident], bool]]] = {
    "": lambda _: True,
    "elective capture": lambda incident: incident.action is Action.CAPTURE and incident.elective,
    "only captures": lambda incident: incident.action in (Action.LOG, Action.CAPTURE),
    "confirmed": lambda incident: incident.confirmed,
    "suspected": lambda incident: not incident.confirmed,
}


class Row(NamedTuple):
    """One row of the table; ``next_phase`` None: the phase stays."""

    event: type
    phases: tuple[Phase, ...]
    guard: str
    next_phase: Phase | None
    command: Command | None = None


TABLE: Final = (
    Row(Recorded, (Phase.DETECTED, Phase.CONFIRMING), "", Phase.DETECTED),
    Row(RecordedWithStacks, (Phase.DETECTED,), "", Phase.CAPTURING, Command.CAPTURE),
    Row(Decided, (Phase.DETECTED,), "", Phase.CAPTURING, Command.CAPTURE),
    Row(Decided, (Phase.CONFIRMING,), "", Phase.CONFIRMING),
    Row(LeftToLaunchers, (Phase.DETECTED, Phase.CAPTURING, Phase.CONFIRMING), "", Phase.ACTING),
    Row(Ordered, OPEN, "", Phase.CAPTURING, Command.CAPTURE),
    Row(StacksTaken, _CAPTURING, "elective capture", Phase.CLOSED),
    Row(StacksTaken, _CAPTURING, "only captures", Phase.DETECTED, Command.TELL),
    Row(StacksTaken, _CAPTURING, "confirmed", Phase.ACTING, Command.ACT),
    Row(StacksTaken, _CAPTURING, "suspected", Phase.CONFIRMING),
    Row(Confirmed, (Phase.DETECTED,), "", None, Command.TELL),
    Row(Confirmed, (Phase.CONFIRMING,), "", Phase.CAPTURING, Command.CAPTURE),
    Row(Proved, (Phase.DETECTED, Phase.CONFIRMING), "", None),
    Row(DeadlineSet, (Phase.CONFIRMING,), "", None),
    Row(StopStepRefused, _ACTING, "", None, Command.ACT),
    Row(StopTimedOut, _ACTING, "", Phase.ACTING, Command.ACT),
    Row(Unanswered, _ACTING, "", Phase.ACTING, Command.ACT),
    Row(RefusedByAll, _ACTING, "", Phase.DETECTED),
    Row(OrderRepeated, OPEN, "", Phase.ACTING, Command.ACT),
    Row(
        AttemptBegan,
        (Phase.DETECTED, Phase.CAPTURING, Phase.CONFIRMING, Phase.ACTING),
        "",
        Phase.RECOVERING,
    ),
    Row(Closed, OPEN, "", Phase.CLOSED),
    Row(Rediagnosed, OPEN, "", None),
    Row(StopNoted, OPEN, "", None),
    Row(NoticeReceived, (Phase.DETECTED,), "", None),
    Row(Observed, OPEN, "", None),
    Row(DirectiveIssued, OPEN, "", None),
    Row(DirectiveRefused, OPEN, "", None),
    Row(EvidenceReceived, ANY, "", None),
    Row(NodeFailedChecks, OPEN, "", None),
)


def transition(incident: Incident, event: Event, now: float) -> list[Changed | Command]:
    """Write what an event changes of an incident; return commands, then the message of the change if there is one."""
    row = _row(incident, event)
    message = _write(incident, event, now)
    if row.next_phase is not None:
        _set(incident, phase=row.next_phase, phase_since=now)
    effects: list[Changed | Command] = [] if row.command is None else [row.command]
    if message is not None:
        effects.append(Changed(incident, message))
    return effects


def _row(incident: Incident, event: Event) -> Row:
    for row in TABLE:
        if isinstance(event, row.event) and incident.phase in row.phases and GUARDS[row.guard](incident):
            return row
    raise AssertionError(f"{type(event).__name__} of an incident that is {incident.phase}")


# What each event writes -----------------------------------------------------------------------------------------------


def _write(incident: Incident, event: Event, now: float) -> str | None:
    """Write the fields; return the message for the log, empty when there is nothing to log, None when unchanged."""
    match event:
        case Recorded(why, withheld, diagnosis) | RecordedWithStacks(why, withheld, diagnosis):
            return _decide(incident, Action.LOG, why, diagnosis, now, withheld)
        case Decided(action, why, diagnosis):
            return _decide(incident, action, why, diagnosis, now)
        case LeftToLaunchers(action, why, decided_at, diagnosis):
            _diagnose(incident, diagnosis)
            _set(incident, action=action, action_reason=why, confirmed=True, ordered=False, directive=0)
            _set_times(incident, decided=decided_at)
            return _announcement(incident)
        case Ordered():
            return _order(incident, event, now)
        case StacksTaken(diagnosis, excluded):
            _diagnose(incident, diagnosis)
            _set_times(incident, captured=now if incident.stacks else None)  # of two captures the later one counts
            if GUARDS["elective capture"](incident):
                taken = len(incident.stacks)
                stated = f"stacks of {count(taken, 'rank')} {'was' if taken == 1 else 'were'} taken"
                return _close(incident, now, Ended.CAPTURED, stated)
            if excluded is not None:
                names, why = excluded
                action = incident.action if names else Action.RESTART
                _set(incident, exclude=names, action=action, action_reason=f"{incident.action_reason}; {why}")
            return "" if diagnosis is None else incident.reason
        case Confirmed(diagnosis, why):
            _diagnose(incident, diagnosis)
            if why:
                _set(incident, action_reason=why)
            if incident.phase is Phase.CONFIRMING:
                _set(incident, heard_nodes=set())  # they are captured again
            _set(incident, confirmed=True, acts_at=None)
            _set_times(incident, decided=now)
            return f"{incident.reason} Action: {_words(incident.action)}."
        case Proved(shown, diagnosis):
            before = incident.proof
            _set(incident, shown=shown, proof_at=now)
            _diagnose(incident, diagnosis)
            return incident.proof_reason if incident.proof != before else ""
        case DeadlineSet(acts_at, cost, attempts):
            _set(incident, acts_at=acts_at, restart_cost=cost, attempts_here=attempts)
            return None
        case StopTimedOut(deadline):
            return _replan(incident, Action.STOP, f"the ranks did not stop by themselves within {deadline:g} s")
        case RefusedByAll():
            _set(incident, withheld=Withheld.REFUSED)
            return _replan(incident, Action.LOG, f"every launcher refused: {incident.outcome or 'without a reason'}")
        case StopStepRefused() | Unanswered():
            return None
        case OrderRepeated(attempt):
            _set(incident, attempt=attempt, excluded_anew=bool(incident.exclude))
            _set_times(incident, restarted=None)
            return ""
        case AttemptBegan(attempt, at):
            _set_times(incident, restarted=at)
            return f"Attempt {attempt} has begun."
        case Closed(at, how, outcome, first_step, steps_lost):
            _set(incident, steps_lost=steps_lost)
            if first_step is not None:
                _set_times(incident, first_step=first_step)
            return _close(incident, at, how, outcome)
        case Rediagnosed(diagnosis):
            _diagnose(incident, diagnosis)
            return incident.reason
        case StopNoted(request):
            _set(incident, action_reason=f"{incident.action_reason}; {request}")
            return f"{capital(request)}."
        case NoticeReceived(notice):
            return _take_notice(incident, notice)
        case Observed(affected, furthest):
            _set(incident, affected=affected, furthest_iteration=furthest)
            return None
        case DirectiveIssued(number, stop_step, watch):
            _set(incident, directive=number, refusals=(), watched_at=now if watch else incident.watched_at)
            if stop_step is not None:
                _set(incident, stop_step=stop_step)
            return None
        case DirectiveRefused(node, detail):
            refusals = tuple(dict.fromkeys((*incident.refusals, node)))
            _set(incident, outcome=detail or incident.outcome, refusals=refusals)
            return None
        case EvidenceReceived():
            _take_evidence(incident, event, now)
            return None
        case NodeFailedChecks(checks):
            known = {(each.node, each.result.name, each.result.reason) for each in incident.node_checks}
            new = [each for each in checks if (each.node, each.result.name, each.result.reason) not in known]
            _set(incident, node_checks=(*incident.node_checks, *new)[:MOST_NODES_CHECKED])
            return None
        case _:
            assert_never(event)


def _decide(
    incident: Incident,
    action: Action,
    why: str,
    diagnosis: Diagnosis | None,
    now: float,
    withheld: Withheld | None = None,
) -> str:
    _diagnose(incident, diagnosis)
    acts_at = None if action is Action.LOG else incident.acts_at
    _set(incident, action=action, action_reason=why, withheld=withheld, acts_at=acts_at)
    _set_times(incident, decided=now if incident.confirmed else None)
    return _announcement(incident)


def _order(incident: Incident, order: Ordered, now: float) -> str:
    if not order.capture_only or incident.phase is Phase.DETECTED:  # else the action under way stays
        _set(
            incident,
            action=order.action,
            action_reason=order.why,
            ordered=True,
            exclude=order.exclude,
            excluded_anew=False,
        )
    _set(incident, attempt=order.attempt, confirmed=not order.capture_only, heard_nodes=set())
    _set_times(incident, decided=None if order.capture_only else now, captured=None)
    return f"{incident.reason} Action: {_words(incident.action)}."


def _close(incident: Incident, at: float, how: Ended, outcome: str) -> str:
    _set(incident, closed_at=at, ended=how, outcome=outcome.rstrip(". "), heard_nodes=set(), acts_at=None)
    return f"Incident {incident.id} is over: {incident.outcome}."


def _replan(incident: Incident, action: Action, why: str) -> str:
    _set(incident, action=action, action_reason=f"{incident.action_reason}; {why}")
    return f"{capital(incident.action_reason)}."


def _take_notice(incident: Incident, notice: Notice) -> str:
    if incident.affected:
        _set(incident, affected=union(incident.affected, [notice.rank]))
        return ""
    outcome = "the rank continued or ended, as its notice states"
    if notice.kind is VerdictKind.WRONG_RESULT:
        place = notice.local_rank, notice.device
        culprit = Culprit(notice.rank, notice.host, Rejected(notice.reason), *place)
        _set(incident, culprits=(culprit,))
    else:
        outcome = f"the training function was restarted in the same process after {notice.seconds:.1f} s"
        _set_times(incident, restarted=notice.at)
    _set(
        incident,
        reason=notice.reason,
        affected=(notice.rank,),
        attempt=notice.attempt,
        action_reason="the rank handles it by itself",
        outcome=outcome,
    )
    _set_times(incident, since=notice.at - notice.seconds)
    return incident.reason


def _take_evidence(incident: Incident, evidence: EvidenceReceived, now: float) -> None:
    _set(incident, heard_at=now)
    for stack in evidence.stacks:
        incident.stacks.add(stack)
    _take_waits(incident, evidence)
    _take_errors(incident, evidence)
    if evidence.logs:
        _set(incident, logs=kept_logs((*incident.logs, *evidence.logs), [c.rank for c in incident.culprits]))
    if evidence.dumps:
        sizes = {**incident.dumps, **{each.rank: each.size for each in evidence.dumps}}
        _set(incident, dumps=dict(sorted(sizes.items())))
    if evidence.nccl is not None:
        others = (each for each in incident.nccl if each.node != evidence.node)
        _set(incident, nccl=(*others, evidence.nccl)[-MOST_ANSWERS:])
    if evidence.look or (evidence.nccl is not None and not evidence.stacks):  # NCCL's answer came later than the stacks
        return
    if incident.timeline.captured is None and incident.phase in (Phase.ACTING, Phase.RECOVERING):
        # Of a crash: the launcher took them before it ended the ranks. Ages are rounded on the way.
        _set_times(incident, captured=max(evidence.at, incident.timeline.decided or 0.0))
    if incident.open:
        incident.heard_nodes.add(evidence.node)  # in place: thousands of launchers send theirs


def _take_errors(incident: Incident, evidence: EvidenceReceived) -> None:
    """Keep the first error of each rank, and who only lost its peer."""
    raised = [stack for stack in evidence.stacks if stack.method == TRACEBACK and stack.error]
    known = {each.rank for each in incident.errors}.union(incident.lost_peer)
    new = [stack for stack in raised if stack.rank not in known]
    victims = [stack.rank for stack in new if is_consequence(stack.error)]
    errors = [_rank_error(stack, evidence) for stack in new if not is_consequence(stack.error)]
    if victims:
        _set(incident, lost_peer=union(incident.lost_peer, victims))
    if errors:
        kept = sorted((*incident.errors, *errors), key=lambda each: (each.at is None, each.at or 0.0, each.rank))
        _set(incident, errors=tuple(kept[:MOST_ERRORS]))


def _rank_error(stack: RankStack, evidence: EvidenceReceived) -> RankError:
    at = None if stack.raised is None else evidence.at - stack.raised
    return RankError(stack.rank, evidence.host, stack.error, site_of(next(filter(of_script, stack.frames), None)), at)


def _take_waits(incident: Incident, evidence: EvidenceReceived) -> None:
    """Keep what ranks wait for by the newest look at each, but for those that wait for their peers."""
    seen = {stack.rank: stack.usage.wait for stack in evidence.stacks if stack.usage is not None and stack.usage.wait}
    if not seen:
        return
    before = {each.rank: each for each in incident.waits}
    waits = [each for each in incident.waits if each.rank not in seen]
    for rank, wait in seen.items():
        if wait.kind is not WaitKind.PEERS:
            waits.append(_rank_wait(rank, wait, evidence.at, before.get(rank)))
    _set(incident, waits=tuple(sorted(waits))[:MAX_WAITS])


def _rank_wait(rank: int, wait: Wait, at: float, last: RankWait | None) -> RankWait:
    until = None if wait.seconds is None else at + wait.seconds
    if last is None or last.until is None:
        return RankWait(rank, wait, at, until)
    anew = until is not None and until - last.until > SAME_END
    return RankWait(rank, wait, at, last.until, last.again or anew)


def kept_logs(received: Sequence[RankLog], culprits: Sequence[int]) -> tuple[RankLog, ...]:
    """The logs that an incident keeps: those of its culprits first, then in the order of arrival."""
    ranks = sorted(dict.fromkeys(log.rank for log in received), key=lambda rank: rank not in culprits)[:LOGGED_RANKS]
    newest = {(log.rank, log.path): log for log in received if log.rank in ranks}
    return tuple(sorted(newest.values(), key=lambda log: ranks.index(log.rank)))


def _diagnose(incident: Incident, diagnosis: Diagnosis | None) -> None:
    if diagnosis is None:
        return
    _set(
        incident,
        kind=diagnosis.kind,
        reason=diagnosis.reason,
        found=diagnosis.found,
        culprits=diagnosis.culprits,
        why_none=diagnosis.why_none,
        affected=diagnosis.affected,
        aborted=diagnosis.aborted,
    )
    if diagnosis.since is not None:
        # Two reports of one beginning differ by their time on the way.
        before = incident.timeline.since
        _set_times(incident, since=diagnosis.since if before is None else min(before, diagnosis.since))


def _set(incident: Incident, **changes: Any) -> None:
    for name, value in changes.items():
        object.__setattr__(incident, name, value)


def _set_times(incident: Incident, **times: float | None) -> None:
    _set(incident, timeline=replace(incident.timeline, **times))


def _announcement(incident: Incident) -> str:
    once = ""
    if not incident.confirmed and incident.action is not Action.LOG:
        patience = "" if incident.kind is VerdictKind.STALLED else "waiting has cost what a restart costs, or "
        once = f", once {patience}repeated samples of the ranks prove it"
    return f"{incident.reason} Action: {_words(incident.action)}; {incident.action_reason}{once}."


def _words(action: Action) -> str:
    return action.replace("_", " ")
