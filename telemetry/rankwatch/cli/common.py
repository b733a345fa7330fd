"""Shared by the commands that query the monitor: flags, output and exit codes.

Exit codes: 0 success; 1 the monitor is unreachable, or failed; 2 an invalid address, token, job or flag, or a request
that the monitor rejects; 3 (``status``, ``doctor``) success, and something needs attention.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from typing import Final

from rankwatch.cli import past
from rankwatch.contract import env
from rankwatch.contract.text import one_line
from rankwatch.monitor_client import DEFAULT_MONITOR, EXIT_AWAY, MonitorClient, MonitorError

EXIT_TROUBLE: Final = 3
EXIT_INTERRUPTED: Final = 130
"""The shell's convention: 128 plus the number of SIGINT."""


def add_flags(parser: argparse.ArgumentParser, variables: Mapping[str, str]) -> None:
    """Add the positional JOB and the flags of :func:`add_monitor_flags`."""
    parser.add_argument("job", nargs="?", metavar="JOB", help="the job's id; without it the newest job")
    add_monitor_flags(parser, variables)
    past.add_database_flag(parser)


def add_monitor_flags(parser: argparse.ArgumentParser, variables: Mapping[str, str], may: str = "read") -> None:
    """Add ``--monitor`` and ``--token``; ``may`` is what the token must allow, for the help."""
    parser.add_argument(
        "--monitor",
        metavar="URL",
        default=variables.get(env.MONITOR_URL) or None,
        help=f"address of the monitor (default: {env.MONITOR_URL}, else the one that your 'rankwatch run' started on "
        f"this machine, else {DEFAULT_MONITOR})",
    )
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        default=variables.get(env.TOKEN) or None,
        help=f"a token that may {may}; prefer {env.TOKEN}, which process listings do not show",
    )


def print_for_job(command: str, arguments: argparse.Namespace, fetch: Callable[[MonitorClient, str], str]) -> int:
    """Print what ``fetch(client, job)`` returns, or the error; returns the exit code of ``command``.

    Without a job in ``arguments``, ``job`` is the newest one.
    """
    return print_result(command, arguments, lambda client: (fetch(client, arguments.job or client.newest_job()), 0))


def print_result(
    command: str,
    arguments: argparse.Namespace,
    fetch: Callable[[MonitorClient], tuple[str, int]],
    *,
    stays: bool = False,
) -> int:
    """Print the text that ``fetch(client)`` returns, or the error; returns the exit code.

    What ``fetch`` raises when an answer lacks something is the error that no monitor answered.

    ``stays``: a monitor that was started to read a record goes on until its page is left.
    """
    try:
        try:
            with past.asked(command, arguments, stays=stays) as client:
                text, code = _fetched(client, fetch)
        except MonitorError as error:
            if error.code != EXIT_AWAY or not past.ended_meanwhile(arguments):
                raise
            with past.asked(command, arguments, stays=stays) as client:
                text, code = _fetched(client, fetch)
        print_text(text)
    except MonitorError as error:
        return print_error(command, error)
    except KeyboardInterrupt:  # also while waiting for the monitor: no traceback
        return EXIT_INTERRUPTED
    return code


def _fetched(client: MonitorClient, fetch: Callable[[MonitorClient], tuple[str, int]]) -> tuple[str, int]:
    """The text and the code; an answer without what each monitor's has is that of another program."""
    try:
        return fetch(client)
    except (KeyError, TypeError, AttributeError, IndexError):
        raise client.not_a_monitor() from None


def print_error(command: str, error: MonitorError) -> int:
    """Print a one-line error to stderr; returns the exit code."""
    sys.stderr.write(f"{command}: {one_line(str(error))}\n")
    return error.code


def print_text(text: str) -> None:
    """Write to stdout; replaces characters that its encoding lacks and tolerates a closed pipe."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has closed; the flush at exit must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
