"""An incident in one line, what its reason adds to that line, and what a person should do about it.

All are made from the facts of the record alone, so that they are the same while the incident is open, in the store and
in a copy. A line that is short of room leaves out the last parts of the cause.

============  ==========================================================================================================
headline      at most 90 characters, for lists
title         the same with room for 160, so that less is cut
detail        what ``reason`` states and ``title`` does not; empty: nothing
============  ==========================================================================================================
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final, NamedTuple

from rankwatch.cli.formatting import capital, count, uncapital
from rankwatch.cli.formatting import ranks as as_ranges
from rankwatch.contract.enums import RESTARTS, Action, CulpritClass, Proof, VerdictKind
from rankwatch.contract.exits import shorter_exits
from rankwatch.contract.semconv import STEP_SECTION
from rankwatch_monitor.core.cause import Behind, Exited, NodeLost, NodeSilent, Rejected, Silent, Slow
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident, Phase, Withheld
from rankwatch_monitor.core.views.awaited import under_way
from rankwatch_monitor.core.views.host_commands import reach
from rankwatch_monitor.core.words import sentence
from rankwatch_monitor.core.words.causes import Parts, When, predicate, unnamed
from rankwatch_monitor.core.words.sentence import followed, on, when_detected

LONGEST: Final = 90
"""Characters of a headline."""
LONGEST_TITLE: Final = 160

_REST: Final = re.compile(r"(?:[:;]| \(| before | if |\. |\.$).*", re.DOTALL)
"""What follows the first clause of a proposal: how and why."""
_BROKEN_NODE: Final = (CulpritClass.DEVICE_OR_NETWORK, CulpritClass.HOST_SILENT)
_HELD: Final = {
    Proof.UNINTERRUPTIBLE: (
        "Repair the storage that the ranks wait for; restart them",
        "if they do not go on by themselves",
    ),
    Proof.SUSPENDED: ("Continue the ranks that were stopped; restart them", "if they do not go on then"),
    Proof.DEBUGGED: ("Leave the debugger; restart the ranks", "if nobody uses it"),
    Proof.STALLED: (
        "Read the stacks: the ranks repeat something that fails. Restart them",
        "once its cause is gone",
    ),
}
"""What a person does about a suspicion on which no action follows, and under which condition: see HELD_BECAUSE."""
_RUNBOOK: Final = {
    VerdictKind.PROCESS_EXITED: "rankwatchjobfailed",
    VerdictKind.NODE_LOST: "rankwatchnodelost",
    VerdictKind.NEVER_STARTED: "rankwatchjobnotstarting",
    VerdictKind.STRAGGLER: "rankwatchstraggler",
    VerdictKind.WRONG_RESULT: "wrong_result",
    VerdictKind.RESTARTED_IN_PROCESS: "restarted_in_process",
}
"""Sections of docs/runbook.md; all other kinds are hangs."""


class NextAction(NamedTuple):
    """What a person should do. ``action`` is None when nothing has to be ordered."""

    action: Action | None
    text: str
    ranks: tuple[int, ...] = ()
    runbook: str = ""
    """Page and section of the manual."""
    also: tuple[Action, ...] = ()
    """Further actions that a person may order now."""
    command: str = ""
    """Shows more of the cause, to be run on ``host``; empty: none."""
    host: str = ""
    """Empty: anywhere in the cluster."""
    until: float | None = None
    """Unix seconds when what is waited for is due; None: no time is known."""
    otherwise: str = ""
    """What follows, or is to be done, if it has not come by then."""
    waits: bool = False
    """Rankwatch acts, or is done: no person is needed now."""
    condition: str = ""
    """When the order is to be given, where something else comes first; empty: now."""

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        action = str(self.action) if self.action else None
        return {
            **self._asdict(),
            "action": action,
            "ranks": list(self.ranks),
            "also": [str(each) for each in self.also],
        }


def headline(incident: Incident) -> str:
    """The incident in at most :data:`LONGEST` characters."""
    return _line(incident, LONGEST).text


def title(incident: Incident) -> str:
    """The incident in at most :data:`LONGEST_TITLE` characters."""
    return _line(incident, LONGEST_TITLE).text


def detail(incident: Incident) -> str:
    """What the reason states beyond the title: how it was detected, what follows; empty: nothing."""
    line, found = _line(incident, LONGEST_TITLE), incident.found
    if not line.whole:
        return incident.reason
    if found is None:
        return "" if _plain(line.text) == _plain(incident.reason) else incident.reason
    culprits = incident.culprits
    subject = "it" if any(c.rank == found.rank for c in culprits[:1]) else f"rank {found.rank}{on(found.host)}"
    if not culprits and found.others:
        subject = "one of them"
    differing = next((c for c in culprits[1:] if c.cause != culprits[0].cause), None)
    aborted = found.kind is VerdictKind.PROCESS_EXITED and bool(culprits) and subject != "it"
    parts = (
        f"When detected, {subject} was aborted." if aborted else "",
        ""
        if incident.shown is not None and not incident.confirmed
        else when_detected(replace(found, elapsed=incident.elapsed or found.elapsed), subject),
        "" if differing is None else f"{capital(_subject_of(differing) + differing.reason)}.",
        f"{capital(after)}." if (after := followed(found.followed)) else "",
        incident.proof_reason if incident.proof not in ("", Proof.BUSY) and incident.confirmed else "",
    )
    return " ".join(filter(None, parts))


def _subject_of(culprit: Culprit) -> str:
    return "" if isinstance(culprit.cause, NodeLost) else f"Rank {culprit.rank}: "


def without_subject(incident: Incident, pronoun: str) -> str:
    """The headline about a pronoun instead of its ranks; empty: it is not about ranks."""
    line = _line(incident, LONGEST)
    return f"{pronoun} {line.rest}" if line.subject else ""


def of_job(incident: Incident | None, reason: str) -> str:
    """The state of a job in at most :data:`LONGEST` characters; empty while it simply runs.

    Args:
        incident: the open one.
        reason: of the job's state.
    """
    return headline(incident) if incident is not None else _clauses(capital(reason.rstrip(".")))


def next_action(incident: Incident, without: str = "", obstacle: str = "") -> NextAction:
    """What a person should do about the incident now.

    Args:
        incident: the record.
        without: a host that restarts should leave out, since incidents repeat there; empty: none.
        obstacle: what is to be done before a restart without the culprits' nodes; empty: nothing.
    """
    runbook = f"runbook.html#{_RUNBOOK.get(incident.kind, 'rankwatchjobhung')}"
    ranks = tuple(c.rank for c in incident.culprits)
    if not incident.open or incident.self_reported:
        return NextAction(None, "Nothing has to be ordered.", runbook=runbook, waits=True)
    if incident.phase in (Phase.ACTING, Phase.RECOVERING) and incident.action not in (Action.LOG, Action.CAPTURE):
        return _under_way(incident, runbook)
    if incident.held:
        first, condition = _HELD[Proof(incident.proof)]
        text = f"{first} {condition}."
        withheld = "runbook.html#rankwatchactionwithheld"
        return NextAction(Action.RESTART, text, runbook=withheld, condition=condition)
    if incident.action in (Action.LOG, Action.CAPTURE) and not incident.elective:
        return _recommended(incident, ranks, runbook, without, obstacle)
    if not incident.confirmed:
        return _wait("Rankwatch acts unless the ranks make progress", runbook, also=(Action.RESTART, Action.CAPTURE))
    return _wait("Rankwatch captures stacks and acts by itself", runbook)


def _wait(what: str, runbook: str, **more: Any) -> NextAction:
    return NextAction(None, f"Wait: {what}.", runbook=runbook, waits=True, **more)


def _under_way(incident: Incident, runbook: str) -> NextAction:
    """What is waited for while the action of an incident is carried out, and what follows if it does not come."""
    what, until = under_way(incident)[:2]
    if until is None:
        return _wait(what, runbook, also=(Action.RESTART,) if incident.action in RESTARTS else ())
    repeats = "Rankwatch repeats the order if no launcher answers"
    otherwise = repeats if incident.directive else "read the launchers' logs if no new attempt begins"
    return _wait(what, runbook, until=until, otherwise=otherwise)


def _recommended(incident: Incident, ranks: tuple[int, ...], runbook: str, without: str, obstacle: str) -> NextAction:
    """The action for a hang that Rankwatch does not act on by itself."""
    restart = restart_without(without) if without else "Restart the ranks"
    if incident.phase is Phase.CAPTURING:
        return _wait("stacks are being captured", runbook)
    if incident.withheld is Withheld.NO_LAUNCHER:
        text = "Restart the job with the tool that started it: no launcher of Rankwatch runs it."
        return NextAction(None, text, runbook=runbook)
    if any(c.kind in _BROKEN_NODE for c in incident.culprits):
        hosts = broken_hosts(incident)
        which = f"node {hosts[0]}" if len(hosts) == 1 else "the culprits' nodes"
        cause = "a host, a device or the network there does not answer."
        silent = len(hosts) == 1 and all(c.kind is CulpritClass.HOST_SILENT for c in incident.culprits)
        command = reach(hosts[0]) if silent else ""
        if obstacle:
            text = f"{obstacle} {capital(cause)}"
            return NextAction(None, text, runbook=runbook, command=command, also=(Action.RESTART,))
        text = f"Restart without {which}: {cause}"
        return NextAction(Action.RESTART_EXCLUDING_NODE, text, ranks, runbook, command=command)
    if incident.action is Action.LOG and not incident.stacks:
        text = "Capture the stacks: they show whether the ranks hang. Nothing happens by itself."
        if incident.confirmed:
            text = f"Capture the stacks, then {uncapital(restart)}: nothing happens by itself."
        return NextAction(Action.CAPTURE, text, runbook=runbook, also=(Action.RESTART,))
    if ranks:
        them = "the ranks" if without else "them"
        return NextAction(Action.RESTART, f"{restart}: nothing restarts {them} by itself.", ranks, runbook)
    return NextAction(Action.RESTART, "Read the stacks, then restart the ranks: no rank stands out.", (), runbook)


def broken_hosts(incident: Incident) -> list[str]:
    """Hosts of culprits for which the node is at fault, not the rank's program; sorted."""
    return sorted({c.host for c in incident.culprits if c.kind in _BROKEN_NODE and c.host})


def restart_without(host: str) -> str:
    """The restart that leaves out a host, without a period."""
    return f"Restart without {host}, where incidents repeat"


class _Line(NamedTuple):
    subject: str
    """``Rank 3 on host-0 ``; empty: the line has another one."""
    rest: str
    whole: bool = True
    """Nothing of the cause was left out."""

    @property
    def text(self) -> str:
        return self.subject + self.rest


def when_of(incident: Incident) -> When:
    """Whether an incident is stated as of now, as over, or as a possibility.

    What repeated samples showed, and how a process is as its launcher observed it, is certain.
    """
    if incident.open and not incident.confirmed:
        sure = incident.proof or any(c.kind is not CulpritClass.BEHIND for c in incident.culprits)
        return When.NOW if sure else When.MAYBE
    going_on = incident.open and incident.phase is not Phase.RECOVERING
    return When.NOW if going_on or incident.elective else When.PAST


def _line(incident: Incident, longest: int) -> _Line:
    when = when_of(incident)
    if not incident.culprits:
        return _without_culprits(incident, when, longest)
    first = incident.culprits[0]
    alike = [c for c in incident.culprits if c.cause == first.cause]
    if silent := _silent_host(incident, when):
        return _Line("", _first_words(silent, longest))
    if hangs := _hangs(incident, when, longest):
        return hangs
    if isinstance(first.cause, Slow | Rejected):
        text = capital(first.cause.stated.rstrip("."))
        return _Line("", _clauses(text, longest), len(text) <= longest)
    if isinstance(first.cause, NodeLost):
        lost, *why = predicate(first.cause, when, short=True)
        return _fitted("", (capital(lost), *why), longest)
    subject = f"Rank {first.rank}" + (f" (and {len(alike) - 1} more)" if len(alike) > 1 else "") + on(first.host)
    if isinstance(first.cause, Exited) and first.cause.message:
        return _crash(f"{subject} ", "".join(predicate(first.cause)).rstrip("."), longest)
    return _fitted(f"{subject} ", predicate(first.cause, when, short=True), longest)


def _without_culprits(incident: Incident, when: When, longest: int) -> _Line:
    if _cause_follows(incident):
        where = f" in section '{incident.section}'" if incident.section else ""
        return _Line("", f"{len(incident.affected)} ranks make no progress{where}; the cause is not known yet")
    if incident.why_none is not None:
        first, *more = unnamed(incident.why_none, when, short=True)
        return _fitted("", (capital(first), *more), longest)
    shown = incident.shown is not None and not incident.confirmed and sentence.shown(incident.shown, when)
    text = capital((shown or incident.reason).rstrip("."))
    return _Line("", _clauses(text, longest), len(text) <= longest)


def _hangs(incident: Incident, when: When, longest: int) -> _Line | None:
    """Where the ranks hang for which the others wait; None: another fault, or the place is not known."""
    culprits, cause = incident.culprits, incident.culprits[0].cause
    several = len(culprits) > 1
    place = _place(incident, culprits[0].rank, several=several)
    if not isinstance(cause, Behind) or not place or any(c.cause != cause for c in culprits):
        return None
    verb = {When.NOW: "hang" if several else "hangs", When.PAST: "hung", When.MAYBE: "may be hung"}[when]
    behind = f", {count(cause.steps, 'step')} behind" if cause.steps else ""
    waits = when.value.waits if cause.waiting == 1 else when.value.wait
    what = f"{verb} {place}{behind}; {count(cause.waiting, 'rank')} {waits}"
    subject = f"Ranks {as_ranges([c.rank for c in culprits])}" if several else f"Rank {culprits[0].rank}"
    host = culprits[0].host if len({c.host for c in culprits}) == 1 else ""
    on_host = f"{subject}{on(host)} "
    fits = len(on_host) + len(what) <= longest
    return _Line(on_host if fits else f"{subject} ", what if fits else _first_words(what, longest - len(subject) - 1))


def _place(incident: Incident, rank: int, *, several: bool) -> str:
    """Where a rank is: the innermost function of its stack, else its section; empty: not known."""
    step = incident.furthest_iteration
    after = "" if step is None else f" after step {step}"
    if function := innermost(incident, rank):
        return f"in {function}{after}"
    if incident.section == STEP_SECTION and after:
        return f"in {'their' if several else 'its'} step{after}"
    return f"in section '{incident.section}'{after}" if incident.section else ""


def innermost(incident: Incident, rank: int) -> str:
    """The innermost function of a rank's stack; empty: none was captured."""
    frames = next((group.frames for group in incident.stacks.groups() if rank in group.ranks), ())
    return frames[0].function if frames else ""


def _cause_follows(incident: Incident) -> bool:
    """Whether stacks are being captured that will show why several ranks make no progress."""
    hangs = incident.phase is Phase.CAPTURING and not incident.elective
    return hangs and not incident.culprits and len(incident.affected) > 1


def _silent_host(incident: Incident, when: When) -> str:
    """The one host of which nothing is received, with its ranks; empty: it is another kind of fault."""
    culprits, cause = incident.culprits, incident.culprits[0].cause
    host, number = culprits[0].host, len(culprits)
    if not host or any(c.host != host or type(c.cause) is not type(cause) for c in culprits):
        return ""
    if isinstance(cause, NodeSilent):
        past = when is When.PAST
        ranks = f"rank report{'ed' if past else 's'}" if number == 1 else f"{number} ranks report{'ed' if past else ''}"
        return f"Node {host} {when.value.is_} silent: neither its launcher nor its {ranks}"
    if isinstance(cause, Silent) and number > 1:
        return f"Node {host}: its {number} ranks stopped reporting, while its launcher still {when.value.does}"
    return ""


def _fitted(subject: str, parts: Parts, longest: int) -> _Line:
    """The subject with as many parts of the clause as there is room for, and with words where one is too long."""
    number = len(parts)
    while number > 1 and len(subject) + len("".join(parts[:number])) > longest:
        number -= 1
    rest = "".join(parts[:number])
    shown = _first_words(rest, longest - len(subject))
    return _Line(subject, shown, number == len(parts) and shown == rest)


def _crash(subject: str, text: str, longest: int) -> _Line:
    """A crash with as much of its error as there is room for; it is the kind of the error that counts."""
    whole = shorter = subject + text
    for shorter in (whole, *shorter_exits(whole)):
        if len(shorter) <= longest:
            break
    fits = shorter == whole and len(whole) <= longest
    shorter = _first_words(shorter, longest)
    return _Line(subject, shorter[len(subject) :], fits) if shorter.startswith(subject) else _Line("", shorter, fits)


def _clauses(text: str, longest: int = LONGEST) -> str:
    """A text that others wrote, without its last clauses, or words where that is not enough."""
    while len(text) > longest and (cut := max(text.rfind(end) for end in ("; ", ", ", ": ", " ("))) > longest // 3:
        text = text[:cut]
    return _first_words(text, longest)


def _first_words(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1].rpartition(" ")[0].rstrip(" .:,;(") + "…"


def _plain(text: str) -> str:
    return text.strip().rstrip(".").casefold()


def first_clause(text: str) -> str:
    """What a proposal is about, without how and why."""
    return _REST.sub("", text, count=1)
