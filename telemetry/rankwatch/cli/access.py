"""``rankwatch token`` and ``rankwatch audit``: tokens for jobs and teams, and who ordered and changed what.

Both need a control token that is not bound to jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from rankwatch.cli import past
from rankwatch.cli.common import add_monitor_flags, print_result
from rankwatch.cli.formatting import printable, when
from rankwatch.cli.parser import Parser
from rankwatch.cli.terminal import Cell, Column, Terminal, terminal_of
from rankwatch.monitor_client import MonitorClient

TOKEN: Final = "rankwatch token"
AUDIT: Final = "rankwatch audit"
SCOPES: Final = ("ingest", "read", "control")
KEPT: Final = 10_000
"""Entries of the audit log that a monitor keeps."""


def token(argv: Sequence[str]) -> int:
    """Make, list or revoke tokens for jobs and teams."""
    arguments = token_parser(os.environ).parse_args(argv)

    def ask(client: MonitorClient) -> tuple[str, int]:
        if arguments.what == "create":
            wanted = {"name": arguments.name, "scope": arguments.scope, "jobs": arguments.job}
            answer = client.send("POST", "/tokens", wanted)
        elif arguments.what == "revoke":
            answer = client.send("DELETE", f"/tokens/{quote(arguments.name, safe='')}", {})
        else:
            answer = client.read("/tokens")
        if arguments.json:
            return json.dumps(answer, indent=2) + "\n", 0
        if arguments.what == "revoke":
            return f"token {arguments.name!r} is revoked\n", 0
        if arguments.what == "list":
            return _text(_tokens(answer["tokens"], terminal_of(sys.stdout))), 0
        # To stderr, so that `rankwatch token create ... > FILE` writes nothing but the token.
        sys.stderr.write("this is shown once; the monitor keeps only its hash\n")
        if not re.fullmatch(r"[!-~]{1,200}", made := answer["token"]):
            raise client.not_a_monitor()
        return f"{made}\n", 0

    return print_result(TOKEN, arguments, ask)


def audit(argv: Sequence[str]) -> int:
    """List orders and changes of policies and tokens: when, by which token, from where."""
    arguments = audit_parser(os.environ).parse_args(argv)

    def ask(client: MonitorClient) -> tuple[str, int]:
        answer = client.read(f"/audit?limit={arguments.limit if arguments.job is None else KEPT}")
        entries = [each for each in answer["entries"] if arguments.job in (None, each["subject"])]
        del entries[arguments.limit :]
        if arguments.json:
            return json.dumps({"entries": entries}, indent=2) + "\n", 0
        return _text(_entries(entries, terminal_of(sys.stdout))), 0

    return print_result(AUDIT, arguments, ask)


def _tokens(rows: Sequence[Mapping[str, Any]], terminal: Terminal) -> list[str]:
    if not rows:
        return ["no named token"]
    columns = (
        Column("NAME"),
        Column("SCOPE"),
        Column("JOBS", least=8),
        Column("CREATED", drop=1),
        Column("BY", drop=2),
    )
    return terminal.table(
        columns,
        [
            [
                Cell(printable(row["name"])),
                Cell(row["scope"]),
                Cell(printable(", ".join(row["jobs"])) or "all"),
                Cell(when(row["created_at"])),
                Cell(printable(row["created_by"])),
            ]
            for row in rows
        ],
    )


def _entries(rows: Sequence[Mapping[str, Any]], terminal: Terminal) -> list[str]:
    if not rows:
        return ["nothing was ordered or changed"]
    columns = (
        Column("WHEN"),
        Column("ACTION"),
        Column("OF", least=8),
        Column("BY"),
        Column("FROM", drop=1),
    )
    head, *table = terminal.table(
        columns,
        [
            [
                Cell(when(row["at"])),
                Cell(row["action"]),
                *(Cell(printable(row[name])) for name in ("subject", "by", "address")),
            ]
            for row in rows
        ],
    )
    lines = [head]
    for row, line in zip(rows, table, strict=True):
        lines += [line, *terminal.wrapped(_detail(row["detail"]), "  ")]
    return lines


def _detail(detail: Mapping[str, Any]) -> str:
    """What was ordered or changed: ``action restart, reason stuck since the switch reboot``, as the page has it."""
    return ", ".join(f"{k} {v if isinstance(v, str) else json.dumps(v)}" for k, v in detail.items())


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _limit(words: str) -> int:
    if not (words.isascii() and words.isdigit()) or not 1 <= int(words) <= KEPT:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {KEPT}, not {words!r}")
    return int(words)


def token_parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    """Make the parser of ``rankwatch token``."""
    made = Parser(
        prog=TOKEN,
        description="Makes, lists and revokes tokens of the monitor. A token has a name, a scope, and maybe the jobs "
        "that it is bound to.",
        epilog="Exit codes: 0 done; 1 the monitor is unreachable, or cannot store it; 2 rejected.",
    )
    below = made.add_subparsers(dest="what", required=True, metavar="COMMAND")
    create = below.add_parser("create", help="make a token and print it, once")
    create.add_argument("name", metavar="NAME", help="shown in the list and in the audit log")
    create.add_argument("--scope", required=True, choices=SCOPES, help="what it allows; control allows everything")
    create.add_argument(
        "--job",
        action="append",
        default=[],
        metavar="PATTERN",
        help="bind it to the jobs with this id, which may have * and ?; may be repeated (default: all jobs)",
    )
    revoke = below.add_parser("revoke", help="revoke a token at once")
    revoke.add_argument("name", metavar="NAME", help="its name")
    for each in (create, below.add_parser("list", help="list tokens, without their secrets"), revoke):
        add_monitor_flags(each, variables, "control")
        each.add_argument("--json", action="store_true", help="print JSON")
    return made


def audit_parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    """Make the parser of ``rankwatch audit``."""
    made = Parser(
        prog=AUDIT,
        description="Lists orders and changes of policies and tokens, the newest first.",
        epilog="Exit codes: 0 shown; 1 the monitor is unreachable; 2 rejected.",
    )
    made.add_argument("job", nargs="?", metavar="JOB", help="only those of this job, by its id")
    made.add_argument("--limit", type=_limit, default=100, metavar="N", help="at most so many (default: 100)")
    add_monitor_flags(made, variables, "control")
    past.add_database_flag(made)
    made.add_argument("--json", action="store_true", help="print JSON")
    return made
