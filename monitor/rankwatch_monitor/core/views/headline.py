"""An incident in one line, and what its reason adds to that line.

All are made from the facts of the record alone, so that they are the same while the incident is open, in the store and
in a copy. A line that is short of room leaves out the last parts of the cause.

============  ==========================================================================================================
headline      at most 90 characters, for lists
title         the same with room for 160, so that less is cut
headlines     the same in the lengths of a console, with file and line of places
detail        what ``reason`` states and ``title`` does not; empty: nothing
============  ==========================================================================================================
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from rankwatch.cli.formatting import capital, count
from rankwatch.cli.formatting import ranks as as_ranges
from rankwatch.contract.enums import CulpritClass, Proof, VerdictKind
from rankwatch.contract.exits import brief_error, is_consequence
from rankwatch.contract.semconv import STEP_SECTION
from rankwatch_monitor.core.cause import (
    Behind,
    Exited,
    NcclBehind,
    NodeLost,
    NodeSilent,
    NotEntered,
    PastLimit,
    Rejected,
    Silent,
    Slow,
)
from rankwatch_monitor.core.hang.proof import own_frame
from rankwatch_monitor.core.hang.stacks import site_of
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.words import sentence
from rankwatch_monitor.core.words.causes import Parts, When, place, predicate, unnamed
from rankwatch_monitor.core.words.sentence import followed, on, when_detected

LONGEST: Final = 90
"""Characters of a headline."""
LONGEST_TITLE: Final = 160
CONSOLE: Final = (164, 124, 82, 62)
"""Characters of the same for consoles: two lines and one, of 100 columns and of 80."""


def headline(incident: Incident) -> str:
    """The incident in at most :data:`LONGEST` characters."""
    return _line(incident, LONGEST).text


def title(incident: Incident) -> str:
    """The incident in at most :data:`LONGEST_TITLE` characters."""
    return _line(incident, LONGEST_TITLE).text


def headlines(incident: Incident) -> tuple[str, ...]:
    """The incident for consoles in the lengths of :data:`CONSOLE`, the longest first; places have file and line."""
    where = f"; it is {site}" if (site := _apart_from_its_cause(incident)) else ""
    lines = []
    for longest in CONSOLE:
        line = _line(incident, longest, sites=True)
        lines.append(line.text + (where if line.whole and len(line.text) + len(where) <= longest else ""))
    return tuple(dict.fromkeys(lines))


def _apart_from_its_cause(incident: Incident) -> str:
    """Where the one culprit is, if its cause does not state that; empty: it does, or that is not known."""
    if len(incident.culprits) != 1 or not isinstance(incident.culprits[0].cause, NotEntered | NcclBehind | PastLimit):
        return ""
    return _site(incident, incident.culprits[0].rank)


def _site(incident: Incident, rank: int) -> str:
    """``in main() (train.py:40)``: the innermost function of the script; empty: not known."""
    frame = own_frame(rank, incident.stacks.groups())
    return "" if frame is None else place(site_of(frame)).lstrip()


def detail(incident: Incident, *, beside_fields: bool = False) -> str:
    """What the reason states beyond the title: how it was detected, what follows; empty: nothing.

    Args:
        beside_fields: time, limit and elapsed seconds stand beside it, and are not stated again.
    """
    line, found = _line(incident, LONGEST_TITLE), incident.found
    if not line.whole:
        return incident.reason
    if found is None:
        return "" if line.is_reason else incident.reason
    culprits = incident.culprits
    subject = "it" if any(c.rank == found.rank for c in culprits[:1]) else f"rank {found.rank}{on(found.host)}"
    if not culprits and found.others:
        subject = "one of them"
    differing = next((c for c in culprits[1:] if c.cause != culprits[0].cause), None)
    aborted = found.kind is VerdictKind.PROCESS_EXITED and bool(culprits) and subject != "it"
    parts = (
        f"When detected, {subject} was aborted." if aborted else "",
        ""
        if (incident.shown is not None and not incident.confirmed) or (beside_fields and incident.elapsed is not None)
        else when_detected(replace(found, elapsed=incident.elapsed or found.elapsed), subject),
        "" if differing is None else f"{capital(_subject_of(differing) + differing.reason)}.",
        f"{capital(after)}." if (after := followed(found.followed)) else "",
        incident.proof_reason if incident.proof not in ("", Proof.BUSY) and incident.confirmed else "",
    )
    return " ".join(filter(None, parts))


def _subject_of(culprit: Culprit) -> str:
    return "" if isinstance(culprit.cause, NodeLost) else f"Rank {culprit.rank}: "


def of_job(incident: Incident | None, reason: str) -> str:
    """The state of a job in at most :data:`LONGEST` characters; empty while it simply runs."""
    return headline(incident) if incident is not None else _first_words(capital(reason.rstrip(".")), LONGEST)


class _Line(NamedTuple):
    text: str
    whole: bool = True
    """Nothing of the cause was left out."""
    is_reason: bool = False
    """It states what the reason of the incident does."""


def when_of(incident: Incident) -> When:
    """Whether an incident is stated as of now, as over, or as a possibility.

    What repeated samples showed, and how a process is as its launcher observed it, is certain.
    """
    if incident.open and not incident.confirmed:
        sure = incident.proof or any(c.kind is not CulpritClass.BEHIND for c in incident.culprits)
        return When.NOW if sure else When.MAYBE
    going_on = incident.open and incident.phase is not Phase.RECOVERING
    return When.NOW if going_on or incident.elective else When.PAST


def _line(incident: Incident, longest: int, *, sites: bool = False) -> _Line:
    when = when_of(incident)
    if not incident.culprits:
        return _without_culprits(incident, when, longest)
    first = incident.culprits[0]
    alike = [c for c in incident.culprits if c.cause == first.cause]
    if silent := _silent_host(incident, when):
        return _Line(_first_words(silent, longest))
    if hangs := _hangs(incident, when, longest, sites=sites):
        return hangs
    if isinstance(first.cause, Slow | Rejected):
        text = capital(first.cause.stated.rstrip("."))
        return _Line(_first_words(text, longest), len(text) <= longest, is_reason=True)
    if isinstance(first.cause, NodeLost):
        lost, *why = predicate(first.cause, when, short=True)
        return _fitted("", (capital(lost), *why), longest)
    if all(isinstance(each.cause, Exited) and is_consequence(each.cause.message) for each in incident.culprits):
        several = len(incident.culprits) > 1
        who = f"Ranks {as_ranges([c.rank for c in incident.culprits])}" if several else f"Rank {first.rank}"
        where = on(first.host) if len({c.host for c in incident.culprits}) == 1 else ""
        return _fitted(f"{who}{where} ", ("lost the connection to another rank",), longest)
    subject = f"Rank {first.rank}" + (f" (and {len(alike) - 1} more)" if len(alike) > 1 else "") + on(first.host)
    if isinstance(first.cause, Exited) and first.cause.message:
        return _crash(subject, first.cause, longest)
    return _fitted(f"{subject} ", predicate(first.cause, when, short=True), longest)


def _without_culprits(incident: Incident, when: When, longest: int) -> _Line:
    if _cause_follows(incident):
        where = f" in section '{incident.section}'" if incident.section else ""
        return _Line(f"{len(incident.affected)} ranks make no progress{where}; the cause is not known yet")
    if incident.why_none is not None:
        first, *more = unnamed(incident.why_none, when, short=True)
        return _fitted("", (capital(first), *more), longest)
    shown = incident.shown is not None and not incident.confirmed and sentence.shown(incident.shown, when)
    text = capital((shown or incident.reason).rstrip("."))
    return _Line(_first_words(text, longest), len(text) <= longest, is_reason=not shown)


def _hangs(incident: Incident, when: When, longest: int, *, sites: bool) -> _Line | None:
    """Where the ranks hang for which the others wait; None: another fault, or the place is not known."""
    culprits, cause = incident.culprits, incident.culprits[0].cause
    several = len(culprits) > 1
    where = _place(incident, culprits[0].rank, several=several, sites=sites)
    if not isinstance(cause, Behind) or not where or any(c.cause != cause for c in culprits):
        return None
    verb = {When.NOW: "hang" if several else "hangs", When.PAST: "hung", When.MAYBE: "may be hung"}[when]
    behind = f", {count(cause.steps, 'step')} behind" if cause.steps else ""
    waits = when.value.waits if cause.waiting == 1 else when.value.wait
    what = f"{verb} {where}{behind}; {count(cause.waiting, 'rank')} {waits}"
    subject = f"Ranks {as_ranges([c.rank for c in culprits])}" if several else f"Rank {culprits[0].rank}"
    host = culprits[0].host if len({c.host for c in culprits}) == 1 else ""
    on_host = f"{subject}{on(host)} "
    fits = len(on_host) + len(what) <= longest
    return _Line(on_host + what if fits else f"{subject} {_first_words(what, longest - len(subject) - 1)}")


def _place(incident: Incident, rank: int, *, several: bool, sites: bool = False) -> str:
    """Where a rank is: the innermost function of its stack, else its section; empty: not known."""
    step = incident.furthest_iteration
    after = "" if step is None else f" after step {step}"
    if sites and (site := _site(incident, rank)):
        return f"{site}{after}"
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
    return _Line(subject + shown, number == len(parts) and len(subject) + len(rest) <= longest)


def _crash(subject: str, cause: Exited, longest: int) -> _Line:
    """A crash with as much of its error as there is room for; it is the kind of the error that counts."""
    brief = replace(cause, message=brief_error(cause.message))
    whole, *shorter = (f"{subject} {''.join(predicate(each))}".rstrip(".") for each in (cause, brief))
    if cause.code == 1:  # as most have
        shorter.append(f"{subject}: {brief.message}".rstrip("."))
    text = next((each for each in (whole, *shorter) if len(each) <= longest), shorter[-1])
    return _Line(_first_words(text, longest), len(whole) <= longest)


def _first_words(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1].rpartition(" ")[0].rstrip(" .:,;(") + "…"
