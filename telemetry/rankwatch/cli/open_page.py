"""``rankwatch open``: prints an address that opens the monitor's page without a token. Standard library only.

The page of a job that has ended is served by a read-only monitor over its record, which ends once the page is left.

No browser is started: its command line, with the code in it, could be read by every user of the machine.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from rankwatch.cli import past
from rankwatch.cli.common import add_monitor_flags, print_result
from rankwatch.cli.parser import Parser
from rankwatch.contract.semconv import API_PREFIX
from rankwatch.monitor_client import MonitorClient


def open_page(argv: Sequence[str]) -> int:
    """Print an address that opens the monitor's page once, within a minute."""
    arguments = parser(os.environ).parse_args(argv)
    return print_result(
        "rankwatch open", arguments, lambda client: (f"{address_of(client, arguments.job)}\n", 0), stays=True
    )


def address_of(client: MonitorClient, job: str | None) -> str:
    """An address that opens the page once, at a job if one is given."""
    answer = client.send("POST", "/session/codes", {})
    if not isinstance(answer, dict) or not isinstance(answer.get("code"), str):
        raise client.not_a_monitor()
    place = f"#/jobs/{quote(job, safe='')}" if job else ""
    return f"{client.url}{API_PREFIX}/session?code={quote(answer['code'], safe='')}{place}"


def parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    """Make the parser."""
    made = Parser(
        prog="rankwatch open",
        description="Prints an address that opens the monitor's page once, within a minute. The browser then may "
        "do what the token allows, for 12 hours at most. The page of a job that has ended shows its record; what "
        f"serves it ends {past.LEFT_SECONDS // 60} minutes after the page was left.",
    )
    made.add_argument("job", nargs="?", metavar="JOB", help="the job to show; without it all jobs")
    add_monitor_flags(made, variables)
    past.add_database_flag(made)
    return made
