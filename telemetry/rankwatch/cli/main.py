"""The ``rankwatch`` command: runs the sub-command named by its first argument.

Sub-commands are the entry points of the group ``rankwatch.commands``. Each is a function that takes the remaining
arguments and returns an exit code (None counts as 0); the first line of its docstring is its summary in the help.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Final

from rankwatch.contract.text import did_you_mean

GROUP: Final = "rankwatch.commands"
EXIT_USAGE: Final = 2

EXIT_INTERRUPTED: Final = 130
"""The shell's convention: 128 plus the number of SIGINT."""
EXIT_PIPE: Final = 141
"""The same of SIGPIPE."""

EXTRAS: Final = {
    "run": "torch",
    "monitor": "monitor",
    "jobs": "monitor",
    "demo": "torch,monitor",
    "replay": "monitor",
}
"""The extra to install, by built-in sub-command, when its imports are missing."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sub-command named by the first argument and return its exit code.

    Returns 2, after printing the reason, for an unknown sub-command and for one whose extra is not installed; 130 after
    Ctrl-C, and 141 when the reader of its output (``head``) has closed the pipe.
    """
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()  # here and not at the interpreter's exit, which could only complain
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE


def _run(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = {point.name: point for point in entry_points(group=GROUP)}
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help", "help"):
        print(_help(commands))  # noqa: T201
        return 0
    if name in ("-V", "--version"):
        import rankwatch

        print(f"rankwatch {rankwatch.__version__}")  # noqa: T201
        return 0
    if name not in commands:
        close = did_you_mean(name, commands) or "; 'rankwatch --help' lists all"
        return _fail(f"there is no sub-command {name!r}{close}")
    try:
        function = commands[name].load()
    except ModuleNotFoundError as error:
        missing = f"rankwatch[{EXTRAS[name]}]" if name in EXTRAS else error.name
        return _fail(f"'{name}' needs {error.name}, which is not installed: pip install '{missing}'")
    return int(function(rest) or 0)


def _fail(message: str) -> int:
    print(f"rankwatch: {message}", file=sys.stderr)  # noqa: T201
    return EXIT_USAGE


TASKS: Final = (
    ("Run a job", ("run", "monitor", "slurm")),
    (
        "Look at jobs",
        ("diagnose", "jobs", "status", "open", "report", "incidents", "logs", "digest", "why", "audit", "mcp"),
    ),
    ("Act on a job", ("order", "policy", "token")),
    ("Check and try", ("check", "demo", "doctor", "replay", "completion")),
)
"""Sub-commands by task, as the help lists them; a test has all of ours in it, and those of other packages follow."""


def _help(commands: Mapping[str, EntryPoint]) -> str:
    width = max(map(len, commands), default=0)
    lines = ["usage: rankwatch COMMAND [arguments]", "", "Monitors every rank of a distributed PyTorch job."]
    listed = {name for _, names in TASKS for name in names}
    tasks = (*TASKS, ("Other", sorted(commands.keys() - listed)))
    for task, names in tasks:
        if present := [name for name in names if name in commands]:
            lines += ["", f"{task}:"]
            lines += [f"  {name:<{width}}  {summary(commands[name])}".rstrip() for name in present]
    lines += ["", "rankwatch COMMAND --help shows its arguments; rankwatch --version prints the version."]
    return "\n".join(lines)


def summary(command: EntryPoint) -> str:
    """First line of the function's docstring, parsed from its source, because importing the module may import torch."""
    try:
        spec = find_spec(command.module)
        # Not the file: a module of an archive has none.
        source = getattr(spec and spec.loader, "get_source", None)
        tree = ast.parse((source and source(command.module)) or "")
    except (ImportError, OSError, SyntaxError, ValueError):
        return ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == command.attr:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""
