"""``rankwatch doctor``: checks this node and the monitor, and prints remedies. Run it where the ranks run.

Each check yields a :class:`~rankwatch.cli.doctor.finding.Finding`. Exit codes: 0 no fault (warnings may be); 3 a fault;
2 invalid flags.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from rankwatch.cli import monitors
from rankwatch.cli.common import EXIT_INTERRUPTED, EXIT_TROUBLE, add_monitor_flags, print_text
from rankwatch.cli.doctor import launcher_checks, monitor_checks, node_checks, package_checks
from rankwatch.cli.doctor.finding import Finding, Level, fault
from rankwatch.cli.formatting import count
from rankwatch.cli.parser import Parser
from rankwatch.cli.terminal import Progress, Terminal, terminal_of
from rankwatch.monitor_client import DEFAULT_MONITOR, MonitorError

STYLES: Final[Mapping[Level, str]] = {Level.OK: "good", Level.WARNING: "warning", Level.FAULT: "bad"}


def doctor(argv: Sequence[str]) -> int:
    """Check this node and the monitor, and print how to fix problems."""
    arguments = parser(os.environ).parse_args(argv)
    try:
        return _examine(arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _examine(arguments: argparse.Namespace) -> int:
    url, token = DEFAULT_MONITOR, None
    with contextlib.suppress(MonitorError):  # several could be meant
        url, token = monitors.locate(arguments.monitor, arguments.token, None)
    terminal = terminal_of(sys.stdout)
    found: list[Finding] = []
    with Progress("") as progress:
        for finding in findings(url, token, named=arguments.monitor is not None, looking=progress.now):
            found.append(finding)
            progress.clear()
            if not arguments.json:  # at once: a check may take long
                print_text("".join(f"{line}\n" for line in lines(finding, terminal)))
    faults = sum(each.level is Level.FAULT for each in found)
    warnings = sum(each.level is Level.WARNING for each in found)
    if arguments.json:
        shown = {"faults": faults, "warnings": warnings, "findings": [each.to_json() for each in found]}
        print_text(json.dumps(shown, indent=2) + "\n")
    else:
        style = "bad" if faults else "warning" if warnings else "good"
        totals = f"{count(faults, 'fault')}, {count(warnings, 'warning')}, {len(found)} checks"
        print_text(f"\n{terminal.paint(totals, style)}\n")
    return EXIT_TROUBLE if faults else 0


def findings(
    url: str, token: str | None, *, named: bool, looking: Callable[[str], None] = lambda _: None
) -> Iterator[Finding]:
    """Run all checks.

    Args:
        named: the address was configured; otherwise a missing monitor is no fault.
        looking: called with the name of the next group of checks.
    """
    parts: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("monitor", lambda: monitor_checks.checks(url, token, named=named)),
        ("machine", lambda: node_checks.checks(url)),
        ("node", lambda: launcher_checks.checks(url)),
        ("packages", package_checks.checks),
    )
    for name, look in parts:
        looking(f"checking the {name}")
        try:
            yield from look()
        except Exception as error:  # noqa: BLE001 - a failed check is a finding; the others still run
            yield fault(
                name, f"the check failed: {error!r}", "please report this, with the output of 'rankwatch doctor --json'"
            )


def lines(finding: Finding, terminal: Terminal) -> list[str]:
    """One finding: level, name and result, and the remedy below it."""
    width = max(len(level) for level in Level)
    mark = f"{finding.level:<{width}}"
    first, *more = terminal.wrapped(f"{mark}  {finding.name:<14}  {finding.found}")
    indent = " " * (width + 18)
    arguments = [first.replace(mark, terminal.paint(mark, STYLES[finding.level]), 1)]
    arguments += [indent + line.strip() for line in more]
    if finding.mend:
        arguments += terminal.wrapped(f"→ {finding.mend}", indent, "bold" if finding.level is not Level.OK else "dim")
    return arguments


def parser(variables: Mapping[str, str]) -> argparse.ArgumentParser:
    """Make the parser."""
    made = Parser(
        prog="rankwatch doctor",
        description="Checks whether Rankwatch works on this node and reaches its monitor, and prints how to fix "
        "problems. Changes nothing.",
        epilog="Exit codes: 0 no fault (there may be warnings); 3 a fault; 2 invalid flags.",
    )
    add_monitor_flags(made, variables, "do what is to be checked")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made
