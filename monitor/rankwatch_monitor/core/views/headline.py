"""An incident in one line, what its reason adds to that line, and what a person should do about it.

All are made from the record alone, so that they are the same while the incident is open, in the store and in a copy.
The headline is the culprit's part of the incident's ``reason``, shortened clause by clause.

============  ==========================================================================================================
headline      at most 90 characters, for lists
title         the same with room for 160, so that less is cut
detail        what ``reason`` states and ``title`` does not; empty: nothing
============  ==========================================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rankwatch.cli.formatting import capital, uncapital
from rankwatch.cli.formatting import ranks as as_ranges
from rankwatch.contract.enums import RESTARTS, Action, CulpritClass, Proof, VerdictKind
from rankwatch.contract.exits import shorter_exits
from rankwatch.contract.semconv import STEP_SECTION
from rankwatch_monitor.core.hang.messages import ITS_PROCESS
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import NO_LAUNCHER, Incident, Phase
from rankwatch_monitor.core.views.awaited import under_way
from rankwatch_monitor.core.views.host_commands import reach

LONGEST: Final = 90
"""Characters of a headline."""
LONGEST_TITLE: Final = 160

_ENDING: Final = (".", ",", ":", ";", " ")
_RANKS: Final = re.compile(r"\branks (\d+(?:, \d+){2,})")
_PAST: Final = {
    "is": "was", "are": "were", "has": "had", "have": "had", "wait": "waited", "waits": "waited", "cannot": "could not",
    "does": "did", "holds": "held", "report": "reported", "reports": "reported", "runs": "ran",
}  # fmt: skip
_PRESENT: Final = re.compile(rf"(?<![\w'./-])(?:{'|'.join(_PAST)})(?![\w'./-])")
_UNNAMED: Final = ", so no rank is named"
_SUBJECT: Final = re.compile(r"(?i)(?:^|[;:] )(?:rank \d+(?: on \S+)?(?: is to blame:)?)?(?: ?it(?:s process)?)?$")
"""What stands before the cause in a reason and names the culprit again."""
_COLLECTIVE: Final = re.compile(r"'([^']+)' number (\d+) of group '[^']+'")
_BEHIND: Final = re.compile(
    r"it (?:is behind within the same step|has not begun the step that the others are in|is (\d+ steps? behind))"
    r", and (?:the (other) rank waits|the (\d+) other ranks wait) for it"
)
"""The cause of a rank whose progress is behind that of the others; it hangs there, and they wait."""
_VAGUE: Final = re.compile(r"\b(?:is|are) (?=behind|past|in |outside|stuck|at different|in different)")
"""What a suspicion states as a fact and is not certain yet."""
_QUOTES: Final = re.compile(r" (?:exited with code \d+: |was killed by \w+ after )")
"""What stands before the error that a process printed."""
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
    return _in_tense(incident, LONGEST)


def title(incident: Incident) -> str:
    """The incident in at most :data:`LONGEST_TITLE` characters."""
    return _in_tense(incident, LONGEST_TITLE)


def detail(incident: Incident) -> str:
    """What the reason states beyond the title: how it was detected, what follows; empty: nothing."""
    line, reason = _line(incident, LONGEST_TITLE), incident.reason.rstrip(".")
    cause = _cause(incident)
    before, found, after = reason.partition(cause) if cause else (reason, "", "")
    if not found:
        return "" if _plain(line) == _plain(reason) else incident.reason
    reworded = _cause_follows(incident) or _silent_host(incident) or _hangs(incident, LONGEST_TITLE)
    if not reworded and _compact(cause) not in line and _compact(capital(cause)) not in line:
        return incident.reason  # the title had to be shortened
    parts = [_when_detected(incident, _SUBJECT.sub("", before.rstrip()).rstrip("".join(_ENDING)))]
    after = after.lstrip("".join(_ENDING))
    if after and not after.startswith(("likewise ", _UNNAMED.strip(", "))):
        parts.append(f"{capital(after)}.")
    return " ".join(filter(None, parts))


def of_job(incident: Incident | None, reason: str) -> str:
    """The state of a job in at most :data:`LONGEST` characters; empty while it simply runs.

    Args:
        incident: the open one.
        reason: of the job's state.
    """
    return headline(incident) if incident is not None else _shortened(capital(reason.rstrip(".")))


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
    if incident.action_reason.startswith(NO_LAUNCHER):
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


def _in_tense(incident: Incident, longest: int) -> str:
    """The line in the tense of the incident. How a process ended is in the past already, and quotes its output."""
    line = _line(incident, longest)
    if incident.open and not incident.confirmed:
        return _shortened(uncertain(incident, line), longest)
    going_on = incident.open and incident.phase is not Phase.RECOVERING
    if going_on or incident.elective or any(c.kind is CulpritClass.DEAD for c in incident.culprits):
        return line
    return _shortened(_PRESENT.sub(lambda found: _PAST[found[0]], line), longest)


def uncertain(incident: Incident, line: str) -> str:
    """A line about an incident, as a possibility where that is all that is known.

    What several samples showed, and how a process is as its launcher observed it, is certain.
    """
    if (
        not incident.open
        or incident.confirmed
        or incident.proof
        or any(c.kind is not CulpritClass.BEHIND for c in incident.culprits)
    ):
        return line
    return _VAGUE.sub("may be ", line, count=1)


def _when_detected(incident: Incident, found: str) -> str:
    """The limit that was passed, as of the detection: its figures do not grow with time."""
    if not found:
        return ""
    found = found.replace(" has ", " had ", 1)
    for culprit in incident.culprits[:1]:
        found = re.sub(rf"^Rank {culprit.rank} on \S+ had ", "it had ", found)
    return f"When detected, {uncapital(found)}."


def _line(incident: Incident, longest: int) -> str:
    if not incident.culprits:
        if _cause_follows(incident):
            where = f" in section '{incident.section}'" if incident.section else ""
            return f"{len(incident.affected)} ranks make no progress{where}; the cause is not known yet"
        return _shortened(capital(_cause(incident) or incident.reason).rstrip("."), longest)
    if silent := _silent_host(incident):
        return _shortened(silent, longest)
    if hangs := _hangs(incident, longest):
        return hangs
    first = incident.culprits[0]
    cause = _compact(first.reason).rstrip(".")
    alike = [c for c in incident.culprits if c.reason == first.reason]
    for start in (ITS_PROCESS, "it "):
        if cause.startswith(start):
            return _of_ranks(alike, " " + cause.removeprefix(start), first.host, longest)
    if cause.startswith("its "):
        return _of_ranks(alike, ": " + cause, first.host, longest)
    return _shortened(capital(cause), longest)


def _cause(incident: Incident) -> str:
    """The words of the reason that the headline is made of; empty: all of them."""
    if not incident.culprits:
        return incident.reason.partition("; ")[2].rstrip(".").replace(_UNNAMED, "")
    cause = incident.culprits[0].reason.rstrip(".")
    for start in (ITS_PROCESS, "it "):
        cause = cause.removeprefix(start)
    return cause if cause in incident.reason else capital(cause)


def _hangs(incident: Incident, longest: int) -> str:
    """Where the ranks hang for which the others wait; empty: another fault, or the place is not known."""
    culprits = incident.culprits
    if not culprits or any(c.reason != culprits[0].reason for c in culprits):
        return ""
    found = _BEHIND.fullmatch(culprits[0].reason.rstrip("."))
    several = len(culprits) > 1
    place = _place(incident, culprits[0].rank, several=several)
    if found is None or not place:
        return ""
    waited = int(found[3] or 1)
    verb = "hang" if several else "hangs"
    if not incident.open or incident.phase is Phase.RECOVERING:
        verb = "hung"
    elif not incident.confirmed:
        verb = "may be hung"
    what = (
        f"{verb} {place}{f', {found[1]}' if found[1] else ''}; {waited} {'rank waits' if waited == 1 else 'ranks wait'}"
    )
    subject = f"Ranks {as_ranges([c.rank for c in culprits])}" if several else f"Rank {culprits[0].rank}"
    host = culprits[0].host if len({c.host for c in culprits}) == 1 else ""
    whole = f"{subject} on {host} {what}"
    return whole if host and len(whole) <= longest else _shortened(f"{subject} {what}", longest)


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


def _silent_host(incident: Incident) -> str:
    """The one host of which nothing is received, with its ranks; empty: it is another kind of fault."""
    culprits = incident.culprits
    if not culprits:
        return ""
    host, reason = culprits[0].host, culprits[0].reason
    if not host or any((c.host, c.kind) != (host, CulpritClass.HOST_SILENT) for c in culprits):
        return ""
    number = len(culprits)
    if reason.startswith("neither the launcher nor "):
        ranks = "rank reports" if number == 1 else f"{number} ranks report"
        return f"Node {host} is silent: neither its launcher nor its {ranks}"
    if reason.startswith("it has sent no report ") and number > 1:
        return f"Node {host}: its {number} ranks stopped reporting, while its launcher still does"
    return ""


def _compact(text: str) -> str:
    """Collectives as ``all_reduce #7``, ranks as ranges."""
    text = _COLLECTIVE.sub(r"\1 #\2", text)
    return _RANKS.sub(lambda found: f"ranks {as_ranges(map(int, found[1].split(', ')))}", text)


def _of_ranks(alike: Sequence[Culprit], cause: str, host: str, longest: int) -> str:
    subject = f"Rank {alike[0].rank}" + (f" (and {len(alike) - 1} more)" if len(alike) > 1 else "")
    whole = f"{subject} on {host}{cause}"
    return _shortened(whole if host else subject + cause, longest)


def _shortened(text: str, longest: int = LONGEST) -> str:
    """Without its last clauses, or words where that is not enough; an ellipsis where it ends within one."""
    if len(text) > longest and (quote := _QUOTES.search(text)):
        return _error_shortened(text, quote.end(), longest)
    whole = text
    while len(text) > longest and (cut := max(text.rfind(end) for end in ("; ", ", ", ": ", " ("))) > longest // 3:
        text = text[:cut]
    if text != whole and not whole.startswith("; ", len(text)) and ": " in whole[: len(text) + 2]:
        text += "…"  # it quotes what a process printed
    return _first_words(text, longest)


def _error_shortened(text: str, quote: int, longest: int) -> str:
    """A crash with as much of its error as there is room for; it is the kind of the error that counts."""
    while len(text) > longest and (cut := text.rfind("; ")) >= quote:
        text = text[:cut]
    for shorter in (text, *shorter_exits(text)):
        if len(shorter) <= longest:
            return shorter
        text = shorter
    return _first_words(text, longest)


def _first_words(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1].rpartition(" ")[0].rstrip(" .:,;(") + "…"


def _plain(text: str) -> str:
    return text.strip().rstrip(".").casefold()


def first_clause(text: str) -> str:
    """What a proposal is about, without how and why."""
    return _REST.sub("", text, count=1)
