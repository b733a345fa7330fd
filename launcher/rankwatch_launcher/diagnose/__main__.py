"""Prints the report of this node: ``python -m rankwatch_launcher.diagnose``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rankwatch.cli.parser import Parser
from rankwatch.contract.files import replace_file
from rankwatch_launcher.diagnose.collect import SECONDS, Collector


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    made = Parser(prog="rankwatch diagnose --report", description="Looks at the ranks of this node.")
    made.add_argument("--pid", action="append", type=int, default=[])
    made.add_argument("--job")
    made.add_argument("--seconds", type=float, default=SECONDS)
    made.add_argument("--profile", action="store_true")
    made.add_argument("--native", action="store_true")
    made.add_argument("--alone", action="store_true")
    made.add_argument("--report", default="-", metavar="FILE")
    return made


def main() -> int:
    """Collect, and write the report to its file or to standard output."""
    arguments = parser().parse_args()
    collector = Collector(arguments.pid, arguments.job)
    report = collector.report(
        arguments.seconds, profile=arguments.profile, native=arguments.native, alone=arguments.alone
    )
    text = json.dumps(asdict(report), separators=(",", ":")) + "\n"
    if arguments.report == "-":
        sys.stdout.write(text)
        return 0
    try:
        replace_file(Path(arguments.report), text, mode=0o600)
    except OSError as error:
        sys.stderr.write(f"rankwatch diagnose: cannot write {arguments.report}: {error.strerror or error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
