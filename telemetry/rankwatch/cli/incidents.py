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
from rankwatch.cli.formatting import count, duration, fault, spaced, when
from rankwatch.cli.incident_report import incident_report, took
from rankwatch.cli.parser import Parser
from rankwatch.cli.terminal import Cell, Column, Terminal, terminal_of
from rankwatch.contract.flight import FILE
from rankwatch.contract.text import operands
from rankwatch.monitor_client import EXIT_WRONG, MonitorClient, MonitorError, path_of

COMMAND: Final = "rankwatch incidents"
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
        found = _listed(client, job) if arguments.id is None else _one(client, job, arguments.id)
        if arguments.flight_recorder is not None:
            return _written(client, job, found, arguments.flight_recorder)
        if arguments.json:
            return json.dumps(found, indent=2) + "\n"
        terminal = terminal_of(sys.stdout)
        if arguments.id is None:
            lines = table(found["incidents"], terminal)
        else:
            lines = incident_report(found, terminal, time.time())
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
        lines += terminal.wrapped(outcome, "  ", style, most=2)
    return lines


def _row(row: Json) -> list[Cell]:
    blamed = ", ".join(f"{c['rank']} {spaced(c['class'])}" for c in row["culprits"][:SHOWN_RANKS]) or "none"
    more = len(row["culprits"]) - SHOWN_RANKS
    phases, cost = {each["name"]: each for each in row["phases"]}, row["cost"]
    return [
        Cell(when(row["opened_at"]).removesuffix(" UTC")),
        Cell(fault(row["kind"]), "" if row["closed_at"] else "bad"),
        Cell(str(row["attempt"])),
        Cell(blamed + (f" and {more} more" if more > 0 else "")),
        Cell(spaced(row["action"])),
        *(Cell(took(phases[name]) if name in phases else "") for name in COLUMNS),
        Cell("open" if row["closed_at"] is None else duration(cost["seconds"])),
        Cell("" if row["steps_lost"] is None else str(row["steps_lost"])),
        Cell(row["id"].removeprefix(f"{row['job_id']}-")),
    ]


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
