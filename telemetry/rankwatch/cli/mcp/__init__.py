"""``rankwatch mcp``: the monitor's answers as tools of the Model Context Protocol, for an assistant on standard input.

Tools only read. An order is there with ``--allow-control`` alone, and each one is put to the person at the assistant
before it is sent.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Final

from rankwatch.cli.common import add_monitor_flags, print_error
from rankwatch.cli.mcp.answers import Answers
from rankwatch.cli.parser import Parser
from rankwatch.monitor_client import EXIT_WRONG, MonitorError

COMMAND: Final = "rankwatch mcp"


def mcp(argv: Sequence[str]) -> int:
    """Answer an assistant's questions about jobs, as a server of the Model Context Protocol."""
    arguments = parser(os.environ).parse_args(argv)
    if find_spec("mcp") is None:
        return print_error(COMMAND, MonitorError("it needs the package mcp: pip install 'rankwatch[mcp]'", EXIT_WRONG))
    from rankwatch.cli.mcp import server

    server.made(Answers(arguments), control=arguments.allow_control).run()
    return 0


def parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    """Make the parser."""
    made = Parser(
        prog=COMMAND,
        description="Serves jobs, incidents, stacks, reasons and reports as read-only tools of the Model Context "
        "Protocol on standard input and output: an assistant starts this command and asks it. Needs the extra 'mcp'.",
    )
    add_monitor_flags(made, variables)
    made.add_argument(
        "--allow-control",
        action="store_true",
        help="also the tool 'order', which acts on ranks once the person at the assistant has confirmed it; needs a "
        "token that may control",
    )
    return made
