"""``rankwatch report``: prints the report of a job. Standard library only."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from rankwatch.cli.common import add_flags, print_for_job
from rankwatch.cli.formatting import WIDTH, bandwidth, refit, size
from rankwatch.cli.parser import Parser
from rankwatch.cli.terminal import terminal_of
from rankwatch.contract.text import lines, one_line
from rankwatch.monitor_client import MonitorClient, path_of

LARGEST: Final = 10_000_000
"""Characters of a report that are printed."""


def report(argv: Sequence[str]) -> int:
    """Print what happened to a job: goodput, incidents, stacks, limits."""
    arguments = _parser(os.environ).parse_args(argv)
    as_text, json_form = (scores, _json_of("scores")) if arguments.scores else (text, as_json)
    if arguments.communication:
        as_text, json_form = communication, _json_of("communication")
    return print_for_job("rankwatch report", arguments, json_form if arguments.json else as_text)


def text(client: MonitorClient, job: str) -> str:
    """The report as text."""
    return _fitted(lines(client.get(f"{path_of(job)}/report").decode(), LARGEST))


def scores(client: MonitorClient, job: str) -> str:
    """The performance of all ranks as text, in the format of nvidia-resiliency-ext."""
    return _fitted(lines(client.get(f"{path_of(job)}/scores/report").decode(), LARGEST))


def communication(client: MonitorClient, job: str) -> str:
    """The bandwidth of each process group as a table."""
    found = client.read(f"{path_of(job)}/communication")
    if not found["operations"]:
        return (
            "No collectives are known of this job yet: they come with profiled steps (kernel_timings) of ranks "
            "that use rankwatch.step() and torch.distributed.\n"
        )
    rows: list[tuple[str, ...]] = [
        ("GROUP", "OPERATION", "RANKS", "CALLS", "TIME", "MOVED", "ALGBW", "BUSBW", "PEERS", "BEST", "")
    ]
    for each in found["operations"]:
        rates = ("-" if each[name] is None else bandwidth(each[name]) for name in ("algorithm", "bus", "peers", "best"))
        took = f"{1000 * each['seconds']:.3g} ms"
        moved = size(each["bytes"]) if each["bytes"] else "-"
        what = (
            one_line(each["group"]),
            one_line(each["operation"]),
            str(each["ranks"]),
            str(each["calls"]),
            took,
            moved,
        )
        rows.append((*what, *rates, "slow" if each["slow"] else ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    made = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    made += [] if not found["omitted"] else [f"and {found['omitted']} more"]
    return "".join(f"{line}\n" for line in made)


def as_json(client: MonitorClient, job: str) -> str:
    """The report as JSON: the job, its goodput, its incidents with their stacks, its stragglers and scores."""
    path = path_of(job)
    summary = client.read(path)
    facts = {"job": summary, "goodput": client.read(f"{path}/goodput")}
    listed = client.listed(f"{path}/incidents", "incidents")
    incidents = [client.read(f"{path}/incidents/{quote(each['id'], safe='')}") for each in listed]
    slow = client.listed(f"{path}/stragglers", "stragglers")
    found = {"incidents": incidents, "stragglers": slow, "scores": client.read(f"{path}/scores")}
    return json.dumps({**facts, **found}, indent=2) + "\n"


def _json_of(view: str) -> Callable[[MonitorClient, str], str]:
    return lambda client, job: json.dumps(client.read(f"{path_of(job)}/{view}"), indent=2) + "\n"


def _fitted(report_text: str) -> str:
    """The text at the width of the terminal; as it is for other output, and on wider ones."""
    terminal = terminal_of(sys.stdout)
    if not terminal.height or terminal.width >= WIDTH:
        return report_text
    return "".join(f"{line}\n" for line in refit(report_text.splitlines(), terminal.width))


def _parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = Parser(
        prog="rankwatch report",
        description="Prints what happened to a job: goodput, incidents with stacks, stragglers, limits in force.",
    )
    add_flags(parser, variables)
    parser.add_argument(
        "--scores", action="store_true", help="print the performance of each rank, stragglers and their causes instead"
    )
    parser.add_argument(
        "--communication", action="store_true", help="print what each process group moves, and its bandwidth, instead"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
