"""The text report of a job: what a person wants to know at three in the morning, in a terminal of 100 columns.

A list of parts, each a function from the job to its lines; a part without lines is left out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rankwatch.wire.vocabulary import NodeRole
from rankwatch_monitor.core import goodput, nodes, picture, timeouts
from rankwatch_monitor.core.incident import Incident
from rankwatch_monitor.core.state import Job

WIDTH: Final = 100
SHOWN_INCIDENTS: Final = 20
SHOWN_GROUPS: Final = 8
SHOWN_FRAMES: Final = 6
"""Innermost frames of a group of stacks; the outer ones are the same in every rank of a script."""
SHOWN_CULPRITS: Final = 8
SHOWN_NODES: Final = 12

_PHASES: Final = (
    ("detect_s", "to find it"),
    ("decide_s", "to decide"),
    ("capture_s", "to take stacks"),
    ("restart_s", "to restart"),
    ("first_step_s", "to the first new step"),
)


def text(job: Job, now: float) -> str:
    """The report at ``now`` (unix seconds), ending in a line feed. Nothing in it can steer a terminal."""
    parts = (_headline(job, now), _launchers(job), _goodput(job), _incidents(job, now), _limits(job))
    return "\n\n".join("\n".join(map(_printable, lines)) for lines in parts if lines) + "\n"


# Parts ----------------------------------------------------------------------------------------------------------------


def _headline(job: Job, now: float) -> list[str]:
    shown = picture.summary(job, now)
    name = shown["name"] if shown["name"] == shown["id"] else f"{shown['name']} ({shown['id']})"
    facts = [
        f"{shown['ranks_reporting']} of {_count(shown['world_size'], 'rank')} reporting",
        f"attempt {shown['attempt']}",
        _count(shown["restarts"], "restart") + f" of {shown['max_restarts']}",
        f"began {_when(shown['started_at'])}",
    ]
    if shown["iteration"] is not None:
        pace = shown["iterations_per_second"]
        facts.insert(1, f"step {shown['iteration']}" + (f" at {_pace(pace)}" if pace else ""))
    if shown["ended_at"] is not None:
        facts.append(f"ended {_when(shown['ended_at'])}")
    lines = _wrapped(f"JOB {name} is {shown['state'].upper()}: {', '.join(facts)}", "")
    return lines + (_wrapped(shown["reason"], "  ") if shown["reason"] else [])


def _launchers(job: Job) -> list[str]:
    """Who does not run ranks, and why; nothing of a job all of whose launchers do."""
    waits = {role: nodes.of_role(job, role) for role in NodeRole if role is not NodeRole.ACTIVE}
    lost = {name: node for name, node in job.nodes.items() if node.lost is not None}
    if job.ended is not None or not (lost or any(waits.values())):
        return []
    figures = [f"{count} {role}" for role, count in nodes.counts(job).items() if count]
    lines = [f"NODES {', '.join(figures + ([f'{len(lost)} lost'] if lost else []))}"]
    told: list[tuple[str, str, str]] = [
        (role, name, node.role_reason) for role, of_role in waits.items() for name, node in of_role.items()
    ]
    told += [("lost", name, node.lost.reason) for name, node in lost.items() if node.lost]
    for what, name, reason in told[:SHOWN_NODES]:
        lines += _wrapped(f"{what} {nodes.title(job, name)}" + (f": {reason}" if reason else ""), "  ")
    more = len(told) - SHOWN_NODES
    return lines + ([f"  and {_count(more, 'more node')}"] if more > 0 else [])


def _goodput(job: Job) -> list[str]:
    spent = goodput.spent(job)
    lived = sum(spent.values())
    if not lived:
        return []
    ratio, (window, lately) = goodput.ratio(job), goodput.window(job)
    if ratio is None:
        lines = [f"GOODPUT is not known yet: no rank has told of a step in {duration(lived)}"]
    else:
        last = f"; {_percent(lately)} of the last {duration(window)}" if lately is not None and window < lived else ""
        lines = [f"GOODPUT {_percent(ratio)} of {duration(lived)} went into new steps{last}"]
    used = sorted(((seconds, bucket) for bucket, seconds in spent.items() if seconds > 0), reverse=True)
    return lines + [f"  {bucket:<14}{duration(seconds):>14}{_percent(seconds / lived):>9}" for seconds, bucket in used]


def _incidents(job: Job, now: float) -> list[str]:
    if not job.incidents:
        return ["INCIDENTS none"]
    shown = list(reversed(job.incidents))[:SHOWN_INCIDENTS]
    lines = [f"INCIDENTS {len(job.incidents)}, the newest first"]
    for incident in shown:
        lines += ["", *_incident(incident, now)]
    earlier = len(job.incidents) - len(shown)
    return lines + (["", f"  and {earlier} before these: /api/v1/jobs/{job.id}/incidents"] if earlier else [])


def _incident(incident: Incident, now: float) -> list[str]:
    since = incident.opened_at if incident.timeline.since is None else incident.timeline.since
    state = f"OPEN for {duration(now - since)}" if incident.open else "over"
    what = incident.kind.replace("_", " ")
    lines = [f"  {_when(incident.opened_at)}  {what} in attempt {incident.attempt}, {state}  [{incident.id}]"]
    lines += _wrapped(incident.reason, "    ")
    for culprit in incident.culprits[:SHOWN_CULPRITS]:
        host = f" on {culprit.host}" if culprit.host else ""
        why = f": {culprit.reason}" if culprit.reason and culprit.reason not in incident.reason else ""
        lines += _wrapped(f"to blame: rank {culprit.rank}{host}, {culprit.kind.replace('_', ' ')}{why}", "    ")
    if len(incident.culprits) > SHOWN_CULPRITS:
        lines.append(f"    and {_count(len(incident.culprits) - SHOWN_CULPRITS, 'more rank')} to blame")
    if not incident.culprits:
        lines.append("    to blame: nobody")
    action = incident.action.replace("_", " ")
    lines += _wrapped(f"action: {action}" + (f"; {incident.action_reason}" if incident.action_reason else ""), "    ")
    if incident.outcome:
        lines += _wrapped(f"outcome: {incident.outcome}", "    ")
    lines += _wrapped(_took(incident), "    ")
    return lines + _stacks(incident)


def _took(incident: Incident) -> str:
    row = picture.ledger_row(incident)
    phases = [f"{row[name]:.1f} s {words}" for name, words in _PHASES if row[name] is not None]
    if row["total_s"] is not None:
        phases.append(f"{row['total_s']:.1f} s in all")
    lost = incident.steps_lost
    return "took: " + ", ".join(phases) + ("" if lost is None else f"; {_count(lost, 'step')} lost")


def _stacks(incident: Incident) -> list[str]:
    groups, failures = picture.stack_groups(incident), incident.stacks.failures()
    if not groups and not failures:
        return []
    lines = ["    stacks, the innermost frame first:"]
    for group in groups[:SHOWN_GROUPS]:
        lines += _group(group)
    if len(groups) > SHOWN_GROUPS:
        lines.append(f"      and {_count(len(groups) - SHOWN_GROUPS, 'more group')}")
    for failure in failures[:SHOWN_GROUPS]:
        lines += _wrapped(f"{_members(failure.ranks)}: no stack, {failure.error or 'without a reason'}", "      ")
    return lines


def _group(group: dict[str, Any]) -> list[str]:
    notes = [word for word, true in (("to blame", group["is_culprit"]), ("waits for peers", group["waits"])) if true]
    lines = [f"      {_members(group['ranks'])}: {', '.join(notes)}".rstrip()]
    lines += [
        f"        {frame['function']}  {frame['file']}:{frame['line']}" for frame in group["frames"][:SHOWN_FRAMES]
    ]
    if not group["frames"]:
        lines.append("        in different places, of which no more are kept")
    more = len(group["frames"]) - SHOWN_FRAMES
    return lines + ([f"        and {_count(more, 'more frame')}"] if more > 0 else [])


def _members(members: Sequence[int]) -> str:
    return f"rank {members[0]}" if len(members) == 1 else f"{len(members)} ranks ({ranks(members)})"


def _limits(job: Job) -> list[str]:
    lines = ["LIMITS in force"]
    for row in timeouts.table(job):
        what = f"section {row['section']}" if row["section"] else row["what"].replace("_", " ")
        force = "none" if row["in_force"] is None else f"{row['in_force']:g} s"
        source = row["source"].replace("_", " ") if row["source"] else ""
        lines.append(f"  {what:<32}{force:>12}  {source}".rstrip())
    return lines


# Words ----------------------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """``12.3 s``, ``4 min 05 s``, ``3 h 07 min``, ``2 d 05 h``."""
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def ranks(members: Sequence[int], shown: int = 12) -> str:
    """Ranks as runs: ``0-2, 5, 8-11``, with no more than ``shown`` of them."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(members):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    words = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    more = f" and {len(words) - shown} more" if len(words) > shown else ""
    return ", ".join(words[:shown]) + more


def _wrapped(words: str, indent: str) -> list[str]:
    return textwrap.wrap(
        words,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _pace(steps_per_second: float) -> str:
    return f"{steps_per_second:.2f} steps/s" if steps_per_second >= 0.1 else f"{1 / steps_per_second:.1f} s a step"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _printable(line: str) -> str:
    # Names come from outside: a host called "\x1b[2J" must not clear a screen.
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
