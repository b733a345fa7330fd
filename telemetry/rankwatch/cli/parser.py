"""argparse for commands: a usage error is one line that points to ``--help``, however many flags there are."""

from __future__ import annotations

import argparse
from types import MethodType
from typing import NoReturn

from rankwatch.contract.text import one_line

EXIT_USAGE = 2


class Parser(argparse.ArgumentParser):
    """An argument parser with short errors; its sub-parsers are of this class, too."""

    def error(self, message: str) -> NoReturn:
        """Print the mistake and end with exit code 2."""
        self.exit(EXIT_USAGE, f"{self.prog}: {one_line(message)}; '{self.prog} --help' lists the arguments\n")


def shorten_errors(parser: argparse.ArgumentParser) -> None:
    """Give a parser that another package made the errors of :class:`Parser`."""
    parser.error = MethodType(Parser.error, parser)  # type: ignore[method-assign]
