"""``rankwatch completion``: a script that completes commands, flags and values in bash, zsh or fish.

Sub-commands are entry points, and each makes its own argument parser. :func:`parser_of` runs a command with ``--help``
and captures the parser when argparse is about to print, so that commands of plug-ins are completed, too. The parser's
flags, choices and file arguments become a static script (:mod:`rankwatch.cli.completion_scripts`); on Tab it runs
``rankwatch`` only to list the ids of jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Final

from rankwatch.cli import completion_scripts, monitors
from rankwatch.cli.common import print_text
from rankwatch.cli.completion_scripts import Command, Flag, Values
from rankwatch.cli.main import GROUP, summary
from rankwatch.cli.parser import Parser
from rankwatch.contract import env
from rankwatch.monitor_client import MonitorClient, MonitorError

JOBS_SECONDS: Final = 1.0
"""Timeout of the request for the ids of jobs when Tab is pressed."""
_FILES: Final = ("FILE", "PATH", "DIR", "FOLDER", "TRAINING_SCRIPT")
_RENDER: Final[Mapping[str, Callable[[Sequence[Command]], str]]] = {
    "bash": completion_scripts.bash,
    "zsh": completion_scripts.zsh,
    "fish": completion_scripts.fish,
}
_WHERE: Final = """where the script goes:
  bash  rankwatch completion bash > ~/.local/share/bash-completion/completions/rankwatch
  zsh   rankwatch completion zsh > DIR/_rankwatch, DIR being one of $fpath, before compinit
  fish  rankwatch completion fish > ~/.config/fish/completions/rankwatch.fish
Regenerate it after an update; with torch installed that takes some seconds."""


class _TakenError(BaseException):
    """Carries a parser out of ``print_help``. A BaseException, so that no ``except Exception`` catches it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def completion(argv: Sequence[str]) -> int:
    """Print a script that completes commands and flags in bash, zsh or fish."""
    arguments = parser().parse_args(argv)
    if arguments.jobs:
        print_text("".join(f"{job}\n" for job in _jobs(os.environ)))
        return 0
    if arguments.shell is None:
        parser().error("the shell is missing: give bash, zsh or fish")
    print_text(_RENDER[arguments.shell](commands()))
    return 0


def commands() -> list[Command]:
    """All installed sub-commands, by name. One that cannot be loaded is completed by its name alone."""
    found = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        made: argparse.ArgumentParser | None = None
        with contextlib.suppress(Exception):  # a plug-in may fail in any way at import
            made = parser_of(point.load())
        found.append(described(point.name, summary(point), made))
    return found


def parser_of(function: Callable[[Sequence[str]], Any]) -> argparse.ArgumentParser | None:
    """The parser of a command, captured when it prints its help; None if it has none."""
    original = argparse.ArgumentParser.print_help

    def take(self: argparse.ArgumentParser, file: Any = None) -> None:
        del file
        raise _TakenError(self)

    logger = logging.getLogger("rankwatch")
    handlers, level = list(logger.handlers), logger.level
    argparse.ArgumentParser.print_help = take  # type: ignore[method-assign]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            for flag in ("--help", "--help-all"):  # the short help of ``run`` is not the parser's
                function([flag])
    except _TakenError as taken:
        return taken.parser
    except (Exception, SystemExit):  # noqa: BLE001 - a command that fails at --help is completed by its name alone
        return None
    finally:
        argparse.ArgumentParser.print_help = original  # type: ignore[method-assign]
        logger.handlers[:], logger.level = handlers, level
    return None


def described(name: str, words: str, parser: argparse.ArgumentParser | None) -> Command:
    """Describe a command for the scripts."""
    if parser is None:
        return Command(name, words)
    flags, values, nested = [], [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            nested = [described(sub, helps.get(sub, ""), made) for sub, made in action.choices.items()]
        elif action.help == argparse.SUPPRESS:
            continue
        elif action.option_strings:
            takes = action.nargs != 0
            flags.append(Flag(tuple(action.option_strings), _help(action), _values(action) if takes else None))
        else:
            values.append(_values(action))
    return Command(name, words, tuple(flags), tuple(values), tuple(nested))


def _values(action: argparse.Action) -> Values:
    if action.choices is not None:
        return Values(words=tuple(str(choice) for choice in action.choices))
    named = action.metavar if isinstance(action.metavar, str) else action.dest
    if named == "JOB":
        return Values(jobs=True)
    return Values(files=any(word in named.upper() for word in _FILES))


def _help(action: argparse.Action) -> str:
    """The beginning of a flag's help, at most 70 characters."""
    words = " ".join((action.help or "").replace("%%", "%").split())
    short = words.split("; ")[0].split(". ")[0].split(" (")[0]
    return short if len(short) <= 70 else short[:69].rstrip() + "…"


def _jobs(variables: Mapping[str, str]) -> list[str]:
    """Ids of the monitor's jobs; empty on errors, which must not be printed on Tab."""
    try:
        url, token = monitors.locate(variables.get(env.MONITOR_URL), variables.get(env.TOKEN), None)
        client = MonitorClient(url, token, JOBS_SECONDS)
        return [job["id"] for job in client.listed("/jobs", "jobs") if job["id"].isprintable()]
    except MonitorError:
        return []


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    made = Parser(
        prog="rankwatch completion",
        description="Prints a script that completes the commands and flags of rankwatch and its plug-ins.",
        epilog=_WHERE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("shell", nargs="?", choices=tuple(_RENDER), help="bash, zsh or fish")
    made.add_argument("--jobs", action="store_true", help="print the ids of the jobs instead (used by the scripts)")
    return made
