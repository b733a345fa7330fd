"""``rankwatch incidents``: what went wrong with a job, how long each phase took, and one incident with its stacks."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from rankwatch.cli import flight_dumps
from rankwatch.cli.common import add_flags, print_for_job
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
    spaced,
    when,
)
from rankwatch.cli.hosts import without_domains
from rankwatch.cli.parser import Parser
from rankwatch.cli.status.render import advice_lines, incident_lines
from rankwatch.cli.terminal import Cell, Column, Terminal, cell_width, cut, cut_front, terminal_of
from rankwatch.contract.flight import FILE
from rankwatch.contract.text import operands
from rankwatch.monitor_client import EXIT_WRONG, MonitorClient, MonitorError, path_of

COMMAND: Final = "rankwatch incidents"
SHOWN_FRAMES: Final = 12
"""Innermost frames of a group of stacks."""
SHOWN_GROUPS: Final = 16
SHOWN_ERRORS: Final = 8
SHOWN_RANKS: Final = 3
"""Culprits named in the list."""

COLUMNS: Final = ("detect", "confirm", "capture", "restart", "recover")
"""Phases with a column in the table."""

Json = Mapping[str, Any]


def incidents(argv: Sequence[str]) -> int:
    """List a job's incidents with what each phase took, or show one with its stacks."""
    arguments = parser(os.environ).parse_args(argv)
    if arguments.flight_recorder is not None and arguments.id is None:
        sys.stderr.write(f"{COMMAND}: --flight-recorder needs the ID of an incident\n")
        return EXIT_WRONG

    def ask(client: MonitorClient, job: str) -> str:
        try:
            found = _listed(client, job) if arguments.id is None else _one(client, job, arguments.id)
            if arguments.flight_recorder is not None:
                return _written(client, job, found, arguments.flight_recorder)
            if arguments.json:
                return json.dumps(found, indent=2) + "\n"
            terminal = terminal_of(sys.stdout)
            lines = table(found["incidents"], terminal) if arguments.id is None else incident_report(found, terminal)
        except (KeyError, TypeError, AttributeError):
            raise client.not_a_monitor() from None
        return "".join(f"{line}\n" for line in lines)

    return print_for_job(COMMAND, arguments, ask)


def table(rows: Sequence[Json], terminal: Terminal) -> list[str]:
    """Table of a job's incidents, newest first, outcomes below; ids without the job's id."""
    if not rows:
        return ["no incident"]
    columns = (
        Column("OPENED", drop=1),
        Column("KIND"),
        Column("ATTEMPT", right=True, drop=10),
        Column("CULPRIT", least=8),
        Column("ACTION", drop=3, least=8),
        *(Column(name.upper(), right=True, drop=drop) for name, drop in zip(COLUMNS, (5, 9, 8, 6, 7), strict=True)),
        Column("TOTAL", right=True),
        Column("STEPS LOST", right=True, drop=4),
        Column("ID", least=8, middle=True),
    )
    made = terminal.table(columns, [_row(row) for row in rows])
    lines = made[:1]
    for row, line in zip(rows, made[1:], strict=True):
        lines.append(line)
        outcome, style = row["outcome"] or f"{row['phase']}: {row['reason']}", "dim" if row["closed_at"] else "bad"
        lines += terminal.wrapped(without_domains(outcome), "  ", style, most=2)
    return lines


def incident_report(incident: Json, terminal: Terminal) -> list[str]:
    """One incident: reason, culprits, action, outcome, the timeline, the stacks in groups."""
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
    lines += ["", *_timeline(incident, terminal)]
    for each in incident["node_checks"]:
        node = each["host"] or each["node"]
        lines += terminal.wrapped(f"node {node} fails its check: {each['text']}", "  ", "warning")
    if kept := incident["flight_dumps"]:
        size = f"{count(len(kept['ranks']), 'rank')}, {kept['bytes'] / 1e6:.1f} MB"
        how = f"'{COMMAND} {operands(incident['job_id'], incident['id'])} --flight-recorder FOLDER' writes them"
        lines += terminal.wrapped(f"flight recorder dumps of {size}: {how}", "  ")
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
    return lines + log_report(incident) + _collectives(incident, terminal)


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


def _row(row: Json) -> list[Cell]:
    blamed = ", ".join(f"{c['rank']} {spaced(c['class'])}" for c in row["culprits"][:SHOWN_RANKS]) or "none"
    more = len(row["culprits"]) - SHOWN_RANKS
    took, cost = {each["name"]: each for each in row["phases"]}, row["cost"]
    return [
        Cell(when(row["opened_at"]).removesuffix(" UTC")),
        Cell(fault(row["kind"]), "" if row["closed_at"] else "bad"),
        Cell(str(row["attempt"])),
        Cell(blamed + (f" and {more} more" if more > 0 else "")),
        Cell(spaced(row["action"])),
        *(Cell(_took(took[name]) if name in took else "") for name in COLUMNS),
        Cell("open" if row["closed_at"] is None else duration(cost["seconds"])),
        Cell("" if row["steps_lost"] is None else str(row["steps_lost"])),
        Cell(row["id"].removeprefix(f"{row['job_id']}-")),
    ]


def _timeline(incident: Json, terminal: Terminal) -> list[str]:
    cost, since = incident["cost"], incident["timeline"]["since"] or incident["opened_at"]
    lines = ["TIMELINE", f"  {when(since)}  the problem began"]
    lines += [
        f"  {'+ ' + duration(each['end'] - since):>23}  {_took(each)} {PHASES[each['name']]}"
        for each in incident["phases"]
        if each["end"] is not None
    ]
    if cost["since"] is None:
        lost = of_it_lost(incident["lost_steps_s"], incident["steps_lost"])
        lines.append(f"  {'':>23}  {duration(cost['seconds'])} in all{lost}")
    else:
        so_far = cost["seconds"] + max(0.0, time.time() - cost["since"])
        lines.append(terminal.paint(f"  {'':>23}  open for {duration(so_far)}", "bad"))
    return lines


def _took(phase: Json) -> str:
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


def _collectives(incident: Json, terminal: Terminal) -> list[str]:
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


# Requests -------------------------------------------------------------------------------------------------------------


def _listed(client: MonitorClient, job: str) -> dict[str, Any]:
    return {"job": job, "incidents": client.listed(f"{path_of(job)}/incidents", "incidents")}


def _one(client: MonitorClient, job: str, wanted: str) -> dict[str, Any]:
    """An incident by its id, or by an unambiguous beginning or end of it."""
    rows = _listed(client, job)["incidents"]
    fitting = [row for row in rows if row["id"] == wanted] or [
        row for row in rows if row["id"].startswith(wanted) or row["id"].endswith(f"-{wanted}")
    ]
    if len(fitting) != 1:
        what = f"has {len(fitting)} incidents that begin or end with" if fitting else "has no incident"
        words = f"job {job!r} {what} {wanted!r}; 'rankwatch incidents {operands(job)}' lists them"
        raise MonitorError(words, EXIT_WRONG)
    return whole(client, job, fitting[0]["id"])


def whole(client: MonitorClient, job: str, incident: str) -> dict[str, Any]:
    """One incident with its stacks and logs."""
    found: dict[str, Any] = client.read(f"{path_of(job)}/incidents/{quote(incident, safe='')}")
    return found


def parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    """Make the parser."""
    made = Parser(
        prog=COMMAND,
        description="Lists a job's incidents with what each phase took, the newest first; with an ID shows that one "
        "with its timeline and the stacks of all ranks.",
    )
    add_flags(made, variables)
    made.add_argument("id", nargs="?", metavar="ID", help="one incident: its id, or a unique beginning or end of it")
    made.add_argument("--json", action="store_true", help="print JSON")
    made.add_argument(
        "--flight-recorder",
        type=Path,
        metavar="FOLDER",
        help="with an ID: write what the flight recorders of the ranks held there, as torch's 'torchfrtrace' reads it",
    )
    return made


def _written(client: MonitorClient, job: str, incident: Json, folder: Path) -> str:
    kept = incident["flight_dumps"]
    if kept is None:
        raise MonitorError(f"no flight recorder dumps of incident {incident['id']} are kept", EXIT_WRONG)
    world_size = int(client.read(path_of(job))["world_size"])
    archive = client.get(f"{path_of(job)}/incidents/{quote(incident['id'], safe='')}/flight-recorder")
    try:
        written = flight_dumps.write(archive, folder, world_size)
    except (ValueError, OSError) as error:
        raise MonitorError(f"the dumps cannot be written to {folder}: {error}", EXIT_WRONG) from None
    what = f"{count(len(written), 'dump')} written to {folder}"
    return f"{what}; read them: torchfrtrace {operands(str(folder))} --prefix {FILE}\n"
