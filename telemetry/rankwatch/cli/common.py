"""What the commands that query the monitor share: flags, output and exit codes.

Exit codes: 0 printed; 1 the monitor cannot be reached, or failed; 2 the question was wrong:
address, token, job or one of the flags, or the monitor refuses what was asked; 3 (``status``, ``doctor``) it was
answered, and there is trouble.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from typing import Final

from rankwatch.contract import env
from rankwatch.monitor_client import DEFAULT_MONITOR, MonitorClient, MonitorError

EXIT_TROUBLE: Final = 3
EXIT_INTERRUPTED: Final = 130
"""As shells count it: 128 and the number of SIGINT."""


def add_flags(parser: argparse.ArgumentParser, variables: Mapping[str, str]) -> None:
    """Add which job is asked about, of which monitor, with which token."""
    parser.add_argument("job", nargs="?", metavar="JOB", help="the job's id; without it the newest job")
    add_monitor_flags(parser, variables)


def add_monitor_flags(parser: argparse.ArgumentParser, variables: Mapping[str, str], may: str = "read") -> None:
    """Add which monitor is asked, with a token that ``may`` do what."""
    parser.add_argument(
        "--monitor",
        metavar="URL",
        default=variables.get(env.MONITOR_URL) or DEFAULT_MONITOR,
        help=f"address of the monitor (also {env.MONITOR_URL}; else {DEFAULT_MONITOR})",
    )
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        default=variables.get(env.TOKEN) or None,
        help=f"a token that may {may}; better given as {env.TOKEN}",
    )


def print_for_job(command: str, arguments: argparse.Namespace, ask: Callable[[MonitorClient, str], str]) -> int:
    """Print what ``ask(client, job)`` returns, or why there is no answer; returns the exit code of ``command``."""
    return print_result(command, arguments, lambda client: (ask(client, arguments.job or client.newest_job()), 0))


def print_result(command: str, arguments: argparse.Namespace, ask: Callable[[MonitorClient], tuple[str, int]]) -> int:
    """The same for a question that needs no job: ``ask(client)`` returns what to print and the exit code."""
    try:
        words, code = ask(MonitorClient(arguments.monitor, arguments.token))
        print_text(words)
    except MonitorError as error:
        return print_error(command, error)
    except KeyboardInterrupt:  # a monitor that does not answer is waited for; a traceback would say nothing more
        return EXIT_INTERRUPTED
    return code


def print_error(command: str, error: MonitorError) -> int:
    """Say why there is no answer, as every command does; returns the exit code."""
    sys.stderr.write(f"{command}: {error}\n")
    return error.code


def print_text(words: str) -> None:
    """Write to stdout, whatever its encoding and whoever reads it."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(words.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has seen enough; nothing may be flushed to it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
