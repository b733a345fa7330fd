"""``rankwatch digest``: what happened over all jobs since a moment, as ``GET /digest`` has it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankwatch.cli.common import add_monitor_flags, print_result
from rankwatch.cli.formatting import when
from rankwatch.cli.parser import Parser
from rankwatch.cli.terminal import Terminal, terminal_of
from rankwatch.cli.why import MOMENTS, joined, moment_flag
from rankwatch.monitor_client import MonitorClient

COMMAND: Final = "rankwatch digest"
DEFAULT_SINCE: Final = "-12h"

Json = Mapping[str, Any]


def digest(argv: Sequence[str]) -> int:
    """Sum up the last 12 hours: incidents, restarts, lost time, jobs that ended, nodes named more than once."""
    arguments = parser(os.environ).parse_args(joined(argv, "--since"))

    def ask(client: MonitorClient) -> tuple[str, int]:
        # The monitor's clock may be another: what is asked for is an age.
        found = client.read(f"/digest?last={max(0.0, time.time() - arguments.since):.3f}")
        lines = text(found, terminal_of(sys.stdout))
        return (json.dumps(found, indent=2) + "\n" if arguments.json else "".join(f"{line}\n" for line in lines)), 0

    return print_result(COMMAND, arguments, ask)


def text(found: Json, terminal: Terminal) -> list[str]:
    """The digest as lines that fit: the summary, each sentence with what it counts, what the record lacks."""
    lines = [f"{when(found['since'])} to {when(found['until'])}"]
    lines += terminal.wrapped(f"{found['summary']}.", style="bold")
    for each in found["lines"]:
        lines += ["", *terminal.wrapped(each["text"])]
        for link in each["links"]:
            at = "" if link["at"] is None else f"{when(link['at']).removesuffix(' UTC')}  "
            lines += terminal.wrapped(f"{at}{link['text']}", "  ")
        if each["more"]:
            lines.append(f"  and {each['more']:,} more")
    if found["notes"]:
        lines.append("")
    for note in found["notes"]:
        lines += terminal.wrapped(f"since {when(note['at'])}: {note['text']}", style="warning")
    return lines


def parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    """Make the parser."""
    made = Parser(
        prog=COMMAND,
        description="Sums up what happened over all jobs since a moment: incidents by kind, restarts, lost time, jobs "
        "that ended, nodes named more than once, stragglers. Only what the monitor still holds is in it.",
    )
    add_monitor_flags(made, variables)
    made.add_argument(
        "--since",
        type=moment_flag,
        default=DEFAULT_SINCE,
        metavar="T",
        help=f"since when: {MOMENTS}; default: {DEFAULT_SINCE}",
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    return made
