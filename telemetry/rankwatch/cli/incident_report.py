"""One incident as ``rankwatch incidents ID`` and the report of its job print it, from its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rankwatch.cli.formatting import (
    PHASES,
    count,
    duration,
    fault,
    log_lines,
    members_of,
    of_it_lost,
    printable,
    ranks,
    when,
)
from rankwatch.cli.status.render import advice_lines, incident_lines
from rankwatch.cli.terminal import Terminal, cell_width, cut, cut_front
from rankwatch.contract.text import operands

SHOWN_FRAMES: Final = 12
"""Innermost frames of a group of stacks."""
SHOWN_GROUPS: Final = 16
SHOWN_ERRORS: Final = 8

Json = Mapping[str, Any]


def incident_report(incident: Json, terminal: Terminal, now: float) -> list[str]:
    """One incident at ``now`` (unix seconds): reason, culprits, action, outcome, the timeline, the stacks in groups."""
    sure = "" if incident["confirmed"] else ", only suspected so far"
    state = "over" if incident["closed_at"] else f"OPEN, {incident['phase']}"
    title = (
        f"INCIDENT {fault(incident['kind'])} in attempt {incident['attempt']} of {incident['job_id']}, {state}{sure}"
    )
    lines = terminal.wrapped(title, "", "bold" if incident["closed_at"] else "bad")
    lines += [f"  id {incident['id']}", *incident_lines(incident, terminal)]
    if of_host := incident.get("of_host"):
        for line in filter(None, (of_host["text"], of_host["suspect"])):
            lines += terminal.wrapped(line, "  ")
    lines += advice_lines(incident, terminal)
    lines += crash_lines(incident.get("crash"), terminal)
    lines += ["", *_timeline(incident, terminal, now)]
    for each in incident["node_checks"]:
        node = each["host"] or each["node"]
        lines += terminal.wrapped(f"node {node} fails its check: {each['text']}", "  ", "warning")
    if kept := incident["flight_dumps"]:
        size = f"{count(len(kept['ranks']), 'rank')}, {kept['bytes'] / 1e6:.1f} MB"
        command = f"rankwatch incidents {operands(incident['job_id'], incident['id'])} --flight-recorder FOLDER"
        lines += terminal.wrapped(f"flight recorder dumps of {size}: '{command}' writes them", "  ")
    for each in incident["nccl"]:
        lines += terminal.wrapped(each["text"], "  ")
        lines += [line for words in each["lines"] for line in terminal.wrapped(words, "    ", "dim")]
    groups, errors = incident["stack_groups"], incident["stack_errors"]
    if groups or errors:
        lines += ["", "STACKS, the innermost frame first"]
    for group in groups[:SHOWN_GROUPS]:
        lines += _group(group, terminal)
    if len(groups) > SHOWN_GROUPS:
        lines.append(f"  and {count(len(groups) - SHOWN_GROUPS, 'more group')}: --json has all")
    by_error: dict[str, list[int]] = {}
    for each in errors:
        by_error.setdefault(each["error"] or "without a reason", []).append(each["rank"])
    for words, members in list(by_error.items())[:SHOWN_ERRORS]:
        lines += terminal.wrapped(f"{members_of(members)}: no stack, {words}", "  ", "warning")
    return lines + log_report(incident) + collective_lines(incident, terminal)


def crash_lines(crash: Json | None, terminal: Terminal) -> list[str]:
    """The first error of each rank by time, and who lost a peer, below an empty line; empty: none failed."""
    if not crash:
        return []
    lines, began = ["", "ERRORS, the first of each rank"], next((e["at"] for e in crash["errors"] if e["at"]), None)
    for position, each in enumerate(crash["errors"]):
        at = "" if each["at"] is None else when(each["at"])
        if position and each["at"] is not None and began is not None:
            at = f"+ {duration(each['at'] - began)}"
        on = f" on {each['host']}" if each["host"] else ""
        place = f", in {each['place']}" if each["place"] else ""
        members = f"rank {each['ranks'][0]}{on}"
        if more := len(each["ranks"]) - 1:
            members += f" and {count(more, 'more rank')} ({ranks(each['ranks'][1:])})"
        lines += terminal.wrapped(f"{at:>23}  {members}: {each['text']}{place}", "  ", "" if position else "bad")
    if crash["text"]:
        lines += terminal.wrapped(f"{'':>23}  {crash['text']} ({ranks(crash['lost_peer'])})", "  ")
    return lines


def log_report(incident: Json) -> list[str]:
    """The last lines of the ranks that failed, below an empty line; empty: none failed."""
    logs = [line for log in incident.get("logs") or () for line in ("", *log_lines(log, "  "))]
    return ["", "LOGS of the ranks that failed", *logs[1:]] if logs else []


def _timeline(incident: Json, terminal: Terminal, now: float) -> list[str]:
    cost, since = incident["cost"], incident["timeline"]["since"] or incident["opened_at"]
    lines = ["TIMELINE", f"  {when(since)}  the problem began"]
    lines += [
        f"  {'+ ' + duration(each['end'] - since):>23}  {took(each)} {PHASES[each['name']]}"
        for each in incident["phases"]
        if each["end"] is not None
    ]
    if cost["since"] is None:
        lost = of_it_lost(incident["lost_steps_s"], incident["steps_lost"])
        lines.append(f"  {'':>23}  {duration(cost['seconds'])} in all{lost}")
    else:
        so_far = cost["seconds"] + max(0.0, now - cost["since"])
        lines.append(terminal.paint(f"  {'':>23}  open for {duration(so_far)}", "bad"))
    return lines


def took(phase: Json) -> str:
    """How long a phase took; empty: it goes on."""
    return "" if phase["end"] is None else duration(phase["end"] - phase["begin"])


def _group(group: Json, terminal: Terminal) -> list[str]:
    notes = [word for word, true in (("culprit", group["is_culprit"]), ("waits for peers", group["waits"])) if true]
    arguments = ", ".join([*notes, *filter(None, (group["note"],))])
    style = "bad" if group["is_culprit"] else ""
    lines = ["", *terminal.wrapped(members_of(group["ranks"]) + (f": {arguments}" if arguments else ""), "  ", style)]
    for frame in group["frames"][:SHOWN_FRAMES]:
        function = cut(printable(frame["function"]), terminal.width // 2)
        where = printable(f"{frame['file']}:{frame['line']}")
        lines.append(f"    {function}  {cut_front(where, terminal.width - cell_width(function) - 6)}")
    more = len(group["frames"]) - SHOWN_FRAMES
    return lines + ([f"    and {count(more, 'more frame')}"] if more > 0 else [])


def collective_lines(incident: Json, terminal: Terminal) -> list[str]:
    """How far each process group has come, below an empty line; empty: not known."""
    fronts = incident.get("collectives") or ()
    if not fronts:
        return []
    lines = ["", "COLLECTIVES, how far each group has come"]
    for front in fronts[:SHOWN_GROUPS]:
        one = len(front["ranks"]) == 1
        newest = f"{front['operation'] or 'collective'} number {front['enqueued']} of group {front['group']}"
        if front["completed"] < front["enqueued"]:
            did = f"{'waits' if one else 'wait'} in {newest}"
        else:
            did = f"{'has' if one else 'have'} completed {newest} and entered no other"
        lines += terminal.wrapped(printable(f"{members_of(front['ranks'])} {did}"), "  ")
    return lines
