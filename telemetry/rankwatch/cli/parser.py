"""argparse for commands: a usage error is one line that points to ``--help``, however many flags there are.

A flag or a choice that is close to a known one is answered with that one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, NoReturn

from rankwatch.contract.schema import Kind
from rankwatch.contract.text import did_you_mean, one_line

EXIT_USAGE = 2


class Parser(argparse.ArgumentParser):
    """An argument parser with short errors; its sub-parsers are of this class, too."""

    def error(self, message: str) -> NoReturn:
        """Print the mistake and end with exit code 2."""
        what = one_line(message)
        end = "" if what.endswith("?") else ";"
        self.exit(EXIT_USAGE, f"{self.prog}: {what}{end} '{self.prog} --help' lists the arguments\n")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """The arguments; one that is not known ends with exit code 2."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flag = next((word for word in unknown if word.startswith("-")), "")
            self.error(f"unrecognized arguments: {' '.join(unknown)}{close_flag(self, flag)}")
        return parsed

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = None if action.choices is None else [*action.choices]
        if choices is not None and value not in choices:
            known = ", ".join(map(str, choices))
            close = did_you_mean(str(value), map(str, choices))
            raise argparse.ArgumentError(action, f"{value!r} is none of {known}{close}")


def close_flag(parser: argparse.ArgumentParser, word: str) -> str:
    """``; did you mean '--section-timeout'?`` for a flag that the parser does not know; empty if none is close."""
    known = [flag for action in parser._actions for flag in action.option_strings if action.help != argparse.SUPPRESS]
    return did_you_mean(word.partition("=")[0].replace("_", "-"), known) if word.startswith("--") else ""


def argument_type(kind: Kind) -> Callable[[str], Any]:
    """The reader of a value for argparse, which shows the text of ArgumentTypeError only."""

    def convert(text: str) -> Any:
        try:
            return kind.read_text(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def shorten_errors(parser: argparse.ArgumentParser) -> None:
    """Give a parser that another package made the errors of :class:`Parser`."""
    for method in (Parser.error, Parser.parse_args, Parser._check_value):
        setattr(parser, method.__name__, MethodType(method, parser))
