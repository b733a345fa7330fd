"""``rankwatch status``: state of all jobs, or of one in detail. Standard library only.

Exit codes: 0 healthy; 3 needs attention; 1 the monitor is unreachable; 2 invalid arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from rankwatch.cli import monitors, past
from rankwatch.cli.common import EXIT_TROUBLE, add_monitor_flags, print_error, print_result
from rankwatch.cli.formatting import duration
from rankwatch.cli.live_display import LiveDisplay
from rankwatch.cli.parser import Parser
from rankwatch.cli.status import query, render
from rankwatch.cli.terminal import Terminal, is_terminal, terminal_of
from rankwatch.monitor_client import EXIT_AWAY, EXIT_WRONG, MonitorClient, MonitorError

COMMAND: Final = "rankwatch status"
INTERVAL: Final = 1.0
"""Seconds between two refreshes of --watch."""
WATCH_TIMEOUT: Final = 5.0
"""Timeout of the requests of --watch, in seconds."""


def status(argv: Sequence[str]) -> int:
    """Show all jobs, or one in detail: state, culprit, reason, goodput; --watch refreshes."""
    arguments = parser(os.environ).parse_args(argv)
    if arguments.watch and arguments.json:
        return print_error(COMMAND, MonitorError("--watch and --json are mutually exclusive", EXIT_WRONG))
    if arguments.watch and arguments.database:
        words = "--watch follows a job that runs; --database shows one that has ended"
        return print_error(COMMAND, MonitorError(words, EXIT_WRONG))
    if arguments.watch and not is_terminal(sys.stdout):
        words = "--watch needs a terminal as output: omit it, or use --json"
        return print_error(COMMAND, MonitorError(words, EXIT_WRONG))
    if arguments.watch:
        return watch(arguments)
    return print_result(
        COMMAND,
        arguments,
        lambda client: _as_json(client, arguments.job) if arguments.json else _text(client, arguments),
    )


def watch(arguments: argparse.Namespace) -> int:
    """Refresh until the user quits; returns the exit code of the last refresh."""
    try:
        url, lines, code = _fetch_or_wait(arguments)
        away: float | None = None
        top, due = 0, time.monotonic() + INTERVAL
        with contextlib.suppress(KeyboardInterrupt), LiveDisplay(sys.stdout, sys.stdin) as screen:
            while True:
                terminal = terminal_of(sys.stdout)
                top = screen.scrolled(top, _room(terminal), len(lines))
                screen.draw(_framed(lines, url, away, terminal, top))
                if screen.wait(max(0.0, due - time.monotonic())):
                    break
                if time.monotonic() < due:  # a key scrolled
                    continue
                try:
                    url, lines, code = _fetch_or_wait(arguments, url)
                    away = None
                except MonitorError as error:
                    if error.code != EXIT_AWAY:
                        raise
                    away = time.monotonic() if away is None else away
                due = time.monotonic() + INTERVAL
    except MonitorError as error:
        return print_error(COMMAND, error)
    return EXIT_AWAY if away is not None else code


def _fetch_or_wait(arguments: argparse.Namespace, url: str = "") -> tuple[str, list[str], int]:
    """The monitor, the lines to show and the exit code; of a job that is not known yet, that it is waited for.

    ``url``: where it was found before; empty: not yet.
    """
    job = arguments.job
    try:
        client = monitors.client(arguments, WATCH_TIMEOUT)
        return client.url, *_fetch_lines(client, job, terminal_of(sys.stdout))
    except MonitorError as error:
        not_started = error.code == EXIT_AWAY and not arguments.monitor and not url
        if job is None or not (error.unknown or not_started):
            raise
        return "", [f"waiting for job {job!r}, which is not known yet"], 0


def _fetch_lines(client: MonitorClient, job: str | None, terminal: Terminal) -> tuple[list[str], int]:
    if job is None:
        jobs, now = query.list_jobs(client), client.now()
        trouble = any(query.in_trouble(each, now, alone=False) for each in jobs)
        return render.fleet_lines(jobs, terminal, now), EXIT_TROUBLE if trouble else 0
    snapshot, now = query.job_snapshot(client, job), client.now()
    trouble = query.in_trouble(snapshot.job, now, alone=True)
    return render.job_lines(snapshot, terminal, now), EXIT_TROUBLE if trouble else 0


def _text(client: MonitorClient, arguments: argparse.Namespace) -> tuple[str, int]:
    lines, code = _fetch_lines(client, arguments.job, terminal_of(sys.stdout))
    return "".join(f"{line}\n" for line in lines), code


def _as_json(client: MonitorClient, job: str | None) -> tuple[str, int]:
    if job is None:
        found = query.list_jobs(client)
        jobs = [{**each, "in_trouble": query.in_trouble(each, client.now(), alone=False)} for each in found]
        trouble = any(each["in_trouble"] for each in jobs)
        shown: Mapping[str, object] = {"monitor": client.url, "in_trouble": trouble, "jobs": jobs}
    else:
        snapshot = query.job_snapshot(client, job)
        trouble = query.in_trouble(snapshot.job, client.now(), alone=True)
        shown = {"monitor": client.url, "in_trouble": trouble, **snapshot.to_json()}
    return json.dumps(shown, indent=2) + "\n", EXIT_TROUBLE if trouble else 0


def _room(terminal: Terminal) -> int:
    """Lines between header and footer."""
    return max(1, terminal.height - 4)


def _framed(lines: Sequence[str], url: str, away: float | None, terminal: Terminal, top: int = 0) -> list[str]:
    """The lines from ``top`` on with a header and a footer, cut to the height of the terminal."""
    clock = time.strftime("%H:%M:%S")
    if away is None:
        head = terminal.paint(f"{url}  {clock}"[: terminal.width], "dim")
    else:
        gone = duration(time.monotonic() - away)
        words = f"THE MONITOR IS AWAY since {gone}; retrying every second. Below: the last response"
        head = terminal.paint(words[: terminal.width], "bad")
    shown = list(lines[top : top + _room(terminal)])
    hidden = len(lines) - len(shown)
    foot = f"{top} lines above, {hidden - top} below: arrow keys, PgUp, PgDn; " if hidden else ""
    return [head, "", *shown, "", terminal.paint(f"{foot}q leaves"[: terminal.width], "dim")]


def parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    """Make the parser."""
    made = Parser(
        prog=COMMAND,
        description="Shows all jobs of a monitor, or one job in detail.",
        epilog="Exit codes: 0 healthy; 3 a job is hung, restarting, lost or has failed (of all jobs: within the "
        "last hour), or has an open incident or straggler; 1 the monitor is unreachable; 2 invalid arguments.",
    )
    made.add_argument("job", nargs="?", metavar="JOB", help="the job's id; without it all jobs")
    add_monitor_flags(made, variables)
    past.add_database_flag(made)
    made.add_argument("--watch", "-w", action="store_true", help="redraw every second, until q is pressed")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made
