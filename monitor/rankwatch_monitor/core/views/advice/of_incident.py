"""What to do about an open incident, rule by rule; the orders that a person may give come with each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from rankwatch.cli.formatting import capital, count, uncapital
from rankwatch.contract.enums import RESTARTS, Action, CulpritClass, Proof, VerdictKind
from rankwatch_monitor.core.incident import exclusion
from rankwatch_monitor.core.incident.lifecycle import REPEAT_AFTER
from rankwatch_monitor.core.incident_record import Phase, Withheld
from rankwatch_monitor.core.ranks import STOPPED, UNINTERRUPTIBLE
from rankwatch_monitor.core.views import host_commands, rank_logs
from rankwatch_monitor.core.views.advice.record import Advice, Step
from rankwatch_monitor.core.views.advice.situation import Situation
from rankwatch_monitor.core.views.crash_advice import crash_of, next_failure, separating
from rankwatch_monitor.core.views.node_gpus import common_function
from rankwatch_monitor.core.views.responses import Order, Place

_RUNBOOK: Final = {
    VerdictKind.PROCESS_EXITED: "rankwatchjobfailed",
    VerdictKind.NODE_LOST: "rankwatchnodelost",
    VerdictKind.NEVER_STARTED: "rankwatchjobnotstarting",
    VerdictKind.STRAGGLER: "rankwatchstraggler",
    VerdictKind.WRONG_RESULT: "wrong_result",
    VerdictKind.RESTARTED_IN_PROCESS: "restarted_in_process",
}
"""Sections of docs/runbook.md; all other kinds are hangs."""
_HANGS: Final = (CulpritClass.BEHIND, CulpritClass.GIL_HELD, CulpritClass.STOPPED)
"""What may be the fault of the rank's program as well as of its host."""
_WITH_STACK: Final = (*_HANGS, CulpritClass.DEVICE_OR_NETWORK)
"""Of a process that is there, so that its stack can be taken."""
_HELD: Final = {
    Proof.UNINTERRUPTIBLE: (
        "Repair the storage that the ranks wait for",
        "; restart them",
        "if they do not go on by themselves",
    ),
    Proof.SUSPENDED: ("Continue the ranks that were stopped", "; restart them", "if they do not go on then"),
    Proof.DEBUGGED: ("Leave the debugger", "; restart the ranks", "if nobody uses it"),
    Proof.STALLED: (
        "Read the stacks",
        ": the ranks repeat something that fails. Restart them",
        "once its cause is gone",
    ),
}
"""What a person does about a suspicion on which no action follows, and under which condition: see HELD_BECAUSE."""
_ACTS: Final = {
    Action.RESTART: "Rankwatch restarts the ranks",
    Action.RESTART_EXCLUDING_NODE: "Rankwatch restarts without the suspect's node",
    Action.SAVE_AND_STOP: "Rankwatch saves and stops the job",
    Action.STOP: "Rankwatch stops the job",
}
_SHORT: Final = {
    Action.RESTART: "restart",
    Action.RESTART_EXCLUDING_NODE: "restart without the node",
    Action.SAVE_AND_STOP: "save and stop",
    Action.STOP: "stop",
}
NONE_COMPLETED: Final = "the ranks were restarted, and none has completed a step yet"


def runbook(kind: VerdictKind) -> str:
    """Page and section of the manual about a kind of incident."""
    return f"runbook.html#{_RUNBOOK.get(kind, 'rankwatchjobhung')}"


# Waiting --------------------------------------------------------------------------------------------------------------


def first_report(s: Situation) -> Advice:
    """A restart of whose ranks none has reported: they are waited for as long as a start takes."""
    due = s.report_due
    assert due is not None
    its = f"attempt {s.job.attempt}" if s.job.attempt > s.current.attempt else "the ranks"
    since = ": no rank has reported since the restart, and nothing follows by itself"
    logs = rank_logs.place_on(s.job, s.first.host if s.first is not None else _any_host(s))
    late = Step(f"Read the logs of {its} and restart again", since, logs.command, logs.host, logs.note)
    text = "the ranks were started again, and none has reported yet"
    return _by(s, text, "first report within", due, late, _orders(s, Action.RESTART), proposed=True)


def _any_host(s: Situation) -> str:
    return next((node.registration.host for node in s.job.nodes.values() if node.ranks), "")


def first_step(s: Situation) -> Advice:
    """A restart whose ranks report, and have completed no step."""
    return _advice(s, Awaited(NONE_COMPLETED, "first step awaited"), orders=_orders(s, Action.RESTART))


def stopping(s: Situation) -> Advice:
    """The job is being stopped."""
    return _advice(s, Awaited("Rankwatch stops the job", "stopping"))


def launchers_restart(s: Situation) -> Advice:
    """The launchers restart the ranks by themselves; a host on which several jobs crash is left out once they are late.

    Where incidents about the host repeat, the restart without it is offered while they are waited for.
    """
    host = s.first.host if s.first is not None else ""
    place = rank_logs.of_launcher(s.job, host) if host else Place()
    where = f"the log of the launcher on {host}" if place.command else "the launchers' logs"
    due = s.current.phase_since + REPEAT_AFTER
    why = ": no new attempt has begun, which is overdue"
    note = f"{capital(place.note)}." if place.command and place.note else ""
    read = Step(f"Read {where}", why, place.command, place.host, note)
    orders = _leaving(s) if s.repeats else ()
    if s.now > due and orders and s.history is not None and s.history.jobs > 1:
        without = Step(_without(s), f": {_shows(s)}")
        return _advice(s, steps=(without, read), orders=orders, proposed=True)
    return _by(s, "the launchers restart the ranks", "restart within", due, read, orders)


def restart_ordered(s: Situation) -> Advice:
    """Rankwatch has ordered a restart, and repeats the order if no launcher answers."""
    due = s.current.phase_since + REPEAT_AFTER
    until, follows = (due, "restart within") if s.now <= due else (None, "restart ordered")
    return _advice(s, Awaited("Rankwatch restarts the ranks", follows, until))


def capturing(s: Situation) -> Advice:
    """Stacks are being captured."""
    return _advice(s, Awaited("stacks are being captured", "stacks being captured"))


def busy(s: Situation) -> Advice:
    """A suspected rank is busy: that is no hang."""
    text = "no action follows while a rank is busy"
    orders = _orders(s, Action.RESTART, Action.CAPTURE)
    return _advice(s, Awaited(text, "no action while a rank is busy"), orders=orders)


def suspected(s: Situation) -> Advice:
    """A suspicion, on which Rankwatch acts at a time that is known where it is one of patience."""
    incident = s.current
    acts = _ACTS.get(incident.action, "Rankwatch captures stacks")
    text, at = f"{acts} unless they make progress", incident.acts_at
    if incident.kind is VerdictKind.STALLED:
        text = "Rankwatch acts only if samples of the ranks prove that they hang"
    until = at if at is not None and s.now <= at else None
    cost = incident.restart_cost if incident.action in RESTARTS else None
    follows = "acts on proof only" if until is None else f"{_SHORT.get(incident.action, 'stacks')} in"
    orders = _orders(s, Action.RESTART, Action.CAPTURE)
    return _advice(s, Awaited(text, follows, until, cost), orders=orders)


def acts(s: Situation) -> Advice:
    """An incident on which an action follows at once."""
    follows = f"stacks, then {_SHORT.get(s.current.action, 'nothing')}"
    return _advice(s, Awaited("Rankwatch captures stacks and acts", follows))


# For a person ---------------------------------------------------------------------------------------------------------


def quiet_host(s: Situation) -> Advice:
    """A host of which nothing is received: it is down, or what the job runs there is at fault."""
    quiet = s.quiet
    assert quiet is not None
    maybe_down = not quiet.other_jobs
    if maybe_down:
        orders: Sequence[Order] = _leaving(s)
    else:  # its fault may end by a plain restart, and stacks show it
        own = [action for action in _own(s) if action is not Action.CAPTURE]
        plain = _orders(s, *own)
        capture = Order(Action.CAPTURE, f"Capture stacks of the {_reporting(s)}") if Action.CAPTURE in _own(s) else None
        orders = [*filter(None, [capture]), *plain]
    pronoun = ("it is", "it") if len(quiet.hosts) == 1 else ("they are", "them")
    leave = f". If {pronoun[0]} not, restart without {pronoun[1]}" if maybe_down and orders else ""
    found = _advice(s, steps=(Step(quiet.step, leave, quiet.command),), orders=orders)
    return replace(
        found,
        proposed=maybe_down and bool(orders),
        condition="if it is not up" if maybe_down and orders else "",
        notes=quiet.notes,
        alternatives=quiet.alternatives,
        host=quiet.hosts[0] if len(quiet.hosts) == 1 else "",
    )


def held(s: Situation) -> Advice:
    """A suspicion of which the samples show why nothing should follow by itself."""
    brief, more, condition = _HELD[Proof(s.current.proof)]
    step = _with_stack(s, Step(brief, f"{more} {condition}"))
    found = _advice(s, steps=(step,), orders=(_plain(s),), proposed=True, condition=condition)
    return replace(found, runbook="runbook.html#rankwatchactionwithheld")


def no_launcher(s: Situation) -> Advice:
    """Nobody is there who could carry out an order."""
    why = ": no launcher of Rankwatch runs it"
    return _advice(s, steps=(_with_stack(s, Step("Restart the job with the tool that started it", why)),))


def needed(s: Situation) -> str | None:
    """Why a restart without the nodes at fault needs another node first; None: no node is, or enough remain."""
    hosts = s.broken_hosts
    left = exclusion.remaining(s.job, *hosts) if hosts else None
    which = hosts[0] if len(hosts) == 1 else f"these {len(hosts)} nodes"
    return left.too_few_without(which) if left is not None and left.too_few else None


def node_needed(s: Situation) -> Advice:
    """A node is at fault, and the job cannot go on without it."""
    why = f"{needed(s)}. {_DOES_NOT_ANSWER}"
    step = Step(capital(exclusion.REMEDY), why, _reach(s))
    return _advice(s, steps=(_with_stack(s, step),), orders=(_plain(s),))


_DOES_NOT_ANSWER: Final = "A host, a device or the network there does not answer"


def broken_node(s: Situation) -> Advice:
    """A node is at fault, not the program of a rank on it."""
    hosts = tuple(s.broken_hosts)
    which = f"node {hosts[0]}" if len(hosts) == 1 else "the culprits' nodes"
    step = Step(f"Restart without {which}", f": {uncapital(_DOES_NOT_ANSWER)}", _reach(s))
    ranks = tuple(culprit.rank for culprit in s.current.culprits)
    order = Order(Action.RESTART_EXCLUDING_NODE, _words_without(hosts), ranks, hosts)
    return _advice(s, steps=(_with_stack(s, step),), orders=(order,), proposed=True)


def _reach(s: Situation) -> str:
    silent = all(each.kind is CulpritClass.HOST_SILENT for each in s.current.culprits)
    return host_commands.reach(s.broken_hosts[0]) if silent and len(s.broken_hosts) == 1 else ""


def capture_first(s: Situation) -> Advice:
    """Nothing shows yet where the ranks hang."""
    orders = (_order(s, Action.CAPTURE), *_orders(s, Action.RESTART))
    if s.current.confirmed:
        step = Step("Capture the stacks", f", then {uncapital(_restart(s))}: nothing happens by itself")
        return _advice(s, steps=(step,), orders=orders, proposed=True)
    step = Step("Capture the stacks", ": they show whether the ranks hang. Nothing happens by itself")
    at = s.current.acts_at
    until, follows = (at, "counts as a hang in") if at is not None and s.now <= at else (None, "")
    found = _advice(s, Awaited("", follows, until), steps=(step,), orders=orders, proposed=True)
    return replace(found, notes=("It counts as a hang unless the ranks make progress.", *found.notes))


def restart(s: Situation) -> Advice:
    """A hang that is only recorded, whose ranks are named."""
    them = "the ranks" if s.repeats and s.leave_out else "them"
    step = _with_stack(s, Step(_restart(s), f": nothing restarts {them} by itself"))
    return _advice(s, steps=(step,), orders=_orders(s, Action.RESTART), proposed=True)


def no_culprit(s: Situation) -> Advice:
    """A hang that is only recorded, of which no rank is named."""
    step = Step("Read the stacks, then restart the ranks", ": no rank stands out")
    return _advice(s, steps=(step,), orders=_orders(s, Action.RESTART), proposed=True)


# Parts ----------------------------------------------------------------------------------------------------------------


class Awaited(NamedTuple):
    """What happens by itself."""

    text: str = ""
    follows: str = ""
    """The same in a few words."""
    until: float | None = None
    cost: float | None = None
    """GPU-hours that it loses."""


NOTHING: Final = Awaited()


def _advice(
    s: Situation,
    awaited: Awaited = NOTHING,
    *,
    steps: tuple[Step, ...] = (),
    orders: Sequence[Order] = (),
    proposed: bool = False,
    condition: str = "",
) -> Advice:
    """The advice with what incidents of all jobs show of the host: where to look, and what if it comes again."""
    look, note = _of_host(s, waits=bool(awaited.text))
    leaves_out = any(each.action is Action.RESTART_EXCLUDING_NODE for each in orders)
    again = _again(s, leaves_out=leaves_out)
    done = steps[:1] and steps[0].brief == _without(s)
    return Advice(
        steps=(*steps, *look),
        awaited=awaited.text,
        until=awaited.until,
        next=awaited.follows,
        cost=awaited.cost,
        orders=tuple(orders),
        proposed=proposed,
        condition=condition,
        weighs_restart=_weighs_restart(s, orders),
        notes=tuple(filter(None, ("" if done and s.current.phase is Phase.ACTING else again, note))),
        runbook=runbook(s.current.kind),
    )


def _weighs_restart(s: Situation, orders: Sequence[Order]) -> bool:
    """Whether a restart may be ordered, or is under way; after one it is too late to weigh it."""
    if s.current.phase is Phase.RECOVERING:
        return False
    acts = s.current.phase is Phase.ACTING and s.current.action in RESTARTS
    return acts or any(order.action in RESTARTS for order in orders)


def _by(
    s: Situation, text: str, follows: str, due: float, late: Step, orders: Sequence[Order], *, proposed: bool = False
) -> Advice:
    """What is waited for until it is due, and is to be done once it is late."""
    if s.now <= due:
        return replace(_advice(s, Awaited(text, follows, due), orders=orders), otherwise=late)
    return _advice(s, steps=(late,), orders=orders, proposed=proposed and bool(orders))


def _own(s: Situation) -> tuple[Action, ...]:
    """What may be ordered about an incident of which no rank is named."""
    incident = s.current
    if incident.withheld is Withheld.NO_LAUNCHER:
        return ()
    if incident.action in (Action.LOG, Action.CAPTURE):
        stacked = bool(incident.stacks) or incident.action is Action.CAPTURE
        return (Action.RESTART,) if stacked else (Action.CAPTURE, Action.RESTART)
    return () if incident.confirmed else (Action.RESTART, Action.CAPTURE)


def _orders(s: Situation, *actions: Action) -> tuple[Order, ...]:
    """Orders of these actions, with the restart that leaves out a host beside the plain one."""
    return tuple(order for action in actions for order in _beside(s, action))


def _beside(s: Situation, action: Action) -> Iterator[Order]:
    without = _leaving(s) if action is Action.RESTART else ()
    if s.repeats:
        yield from without
    yield _order(s, action)
    if not s.repeats:
        yield from without


def _order(s: Situation, action: Action) -> Order:
    return _plain(s) if action is Action.RESTART else Order(action, "Capture stacks")


def _plain(s: Situation) -> Order:
    again = " again" if s.current.phase is Phase.RECOVERING else "" if s.current.confirmed else " now"
    return Order(Action.RESTART, f"Restart{again}")


def _leaving(s: Situation) -> tuple[Order, ...]:
    """The restart without the host, where it can be left out."""
    if not s.leave_out:
        return ()
    hosts = s.quiet.hosts if s.quiet is not None else tuple(dict.fromkeys(c.host for c in s.current.culprits))
    return (Order(Action.RESTART_EXCLUDING_NODE, _words_without(hosts), s.leave_out, hosts),)


def _words_without(hosts: tuple[str, ...]) -> str:
    return f"Restart without {hosts[0]}" if len(hosts) == 1 else f"Restart without these {len(hosts)} nodes"


def _without(s: Situation) -> str:
    host = "" if s.first is None else s.first.host
    return f"Restart without {host}, where incidents repeat"


def _restart(s: Situation) -> str:
    return _without(s) if s.repeats and s.leave_out and s.first is not None else "Restart the ranks"


def _reporting(s: Situation) -> str:
    assert s.quiet is not None
    number = s.job.world_size - len(s.quiet.ranks)
    return f"{count(number, 'rank')} that report{'s' if number == 1 else ''}"


def _with_stack(s: Situation, step: Step) -> Step:
    """The step with the command that shows where the first culprit hangs, where no stack of it was captured."""
    first, columns, incident = s.first, s.job.columns, s.current
    if first is None or step.command or first.kind not in _WITH_STACK or incident.phase is Phase.CAPTURING:
        return step
    rank = first.rank
    here = incident.attempt == s.job.attempt and rank < len(columns) and columns.hosts[rank] == first.host
    pid = int(columns.pid_R[rank]) if here else 0
    taken = any(rank in group.ranks and group.frames for group in incident.stacks.groups())
    if pid <= 0 or taken:
        return step
    stuck = columns.process_R[rank] in (STOPPED, UNINTERRUPTIBLE)
    command = host_commands.stack_of_stuck(pid) if stuck else host_commands.stack(pid)
    more = f"{step.more}. No stack of rank {rank} was captured: take it on {first.host} first"
    return step._replace(more=more, command=command, host=first.host)


def _of_host(s: Situation, *, waits: bool) -> tuple[tuple[Step, ...], str]:
    """What to look at on the culprit's host, as its page shows it: a step, or where nothing is to be done a note."""
    history = s.history
    if s.first is None or history is None or history.finding is None or not history.concerns(s.current):
        return (), ""
    found = history.finding
    commands = "; ".join(found.of_host)
    if waits and (found.of_job or not commands):
        return (), found.text
    return (Step(found.brief, found.more, commands, s.first.host if commands else ""),), ""


def _again(s: Situation, *, leaves_out: bool) -> str:
    """What to do if it happens again, or what a restart without the host shows, as a sentence; empty: nothing."""
    first, job = s.first, s.job
    if first is None:
        return ""
    crashed = first.kind is CulpritClass.DEAD
    elsewhere = any(host not in ("", first.host) for host in job.columns.hosts)  # of many hosts the first one answers
    blocked = _blocked(s)
    if crashed and not (leaves_out and s.repeats):
        shows = _shows(s) if elsewhere else ""
        crash = crash_of(first, s.current, job.incidents)
        return " ".join(filter(None, (next_failure(crash, shows), blocked if s.repeats else "")))
    if first.kind not in (*_HANGS, CulpritClass.DEAD):
        return ""
    if blocked:
        return blocked if s.repeats else f"If it hangs again, {uncapital(blocked)}"
    if not leaves_out:
        return ""
    if s.repeats:
        return f"After a restart without {first.host}: {_shows(s)}."
    return f"If it hangs again, restart without {first.host}: {_shows(s)}."


def _blocked(s: Situation) -> str:
    """What to do before a restart without the one host of all culprits, where too few nodes would remain."""
    assert s.first is not None
    if {culprit.host for culprit in s.current.culprits} != {s.first.host}:
        return ""
    left = exclusion.permitted(s.job, s.first.rank)
    return "" if left is None else left.obstacle(s.first.host)


def _shows(s: Situation) -> str:
    """What a restart without the host shows, as a clause; the rank runs again only where a spare takes its place."""
    first = s.first
    assert first is not None
    crashed = first.kind is CulpritClass.DEAD
    left = exclusion.remaining(s.job, first.host)
    if left.nodes + left.spares >= left.of:
        return separating(first.rank, first.host, "fails" if crashed else "hangs")
    function = common_function([(s.current, first)])
    same = "the same error" if crashed else f"a hang{f' in {function}' if function else ''}"
    return f"{same} on any rank left points to data or code"
