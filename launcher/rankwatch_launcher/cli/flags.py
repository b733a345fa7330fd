"""Rankwatch's flags and environment variables, generated from the fields of ``Policy`` and ``Options``.

A flag takes precedence over its environment variable; ft_launcher's spelling (:mod:`rankwatch_launcher.cli.nvrx`) comes
between the two, and its file last. Values that are not set are left to the monitor's defaults: only set values are sent
with the registration.
"""

from __future__ import annotations

import argparse
import logging
from collections import deque
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import Field, fields
from typing import Any, Final

from rankwatch.cli.parser import argument_type
from rankwatch.contract.env import parse_bool
from rankwatch.contract.policy import Policy
from rankwatch.contract.schema import SECTIONS, SWITCH, kinds, parse_section_timeouts
from rankwatch.faults.spec import VARIABLE, parse_all
from rankwatch_launcher.log import logger
from rankwatch_launcher.options import NODE_CHECK, PREWARM_MEMORY, PrewarmSettings
from rankwatch_launcher.procfs import GIB

PREFIX: Final = "RANKWATCH_"
TORCHRUN_FLAG: Final = "max_restarts"
"""Set by torchrun's own flag."""
NOTHING: Final[Mapping[str, Any]] = {}
FOREIGN_SWITCHES: Final = (
    *("-h", "--help", "--standalone", "-m", "--module", "--virtual-local-rank", "--virtual_local_rank"),
    *("--no-python", "--no_python", "--run-path", "--run_path"),
    *("--ignore-missing-fault-tol-cfg", "--ignore_missing_fault_tol_cfg", "--ft-ignore-missing-cfg"),
)
"""Flags of torchrun and ft_launcher without a value; all others have one. A test compares them with the parser."""

STANDBY: Final = "RANKWATCH_STANDBY"
AUTOMATIC: Final = "auto"
STANDBY_MEMORY: Final = "RANKWATCH_STANDBY_MEMORY"
DEFAULT_SIZE: Final = f"{PREWARM_MEMORY / GIB:g}"


class _SectionTimeouts(argparse.Action):
    """Collects ``NAME=SECONDS`` lists over repeated flags."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        try:
            limits = parse_section_timeouts(str(values))
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest, None) or {}), **limits})


class _Collected(argparse.Action):
    """Collects the values of a repeated flag that each stand for several."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest, ()), *values))


STRAGGLERS: Final = "straggler_detection"
ACTIONS: Final = ("detection", "observe_only", "on_hang", "capture_deadline", "stop_deadline", "max_no_progress")


def policy_groups() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Names of the policy's values but ``max_restarts``: what is done, limits, stragglers and profiling."""
    names = [setting.name for setting in fields(Policy) if setting.name != TORCHRUN_FLAG]
    stragglers = tuple(names[names.index(STRAGGLERS) :])
    return ACTIONS, tuple(n for n in names if n not in ACTIONS and n not in stragglers), stragglers


def add_flags(group: argparse._ArgumentGroup, of: type[Any], names: Collection[str] | None = None) -> None:
    """Add one flag for each setting of a dataclass, or for those of these names."""
    for each in fields(of):
        if not each.metadata or (names is not None and each.name not in names):
            continue
        kind, flag = each.metadata["kind"], "--" + each.name.replace("_", "-")
        common: dict[str, Any] = {"dest": each.name, "default": argparse.SUPPRESS, "help": _help(each)}
        if kind is SWITCH:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        elif kind is SECTIONS:
            group.add_argument(flag.removesuffix("s"), flag, action=_SectionTimeouts, metavar=kind.metavar, **common)
        elif kind is NODE_CHECK:
            group.add_argument(flag, nargs="?", const=each.default, choices=kind.choices, **common)
            group.add_argument(f"--no-{flag[2:]}", action="store_const", const="off", **common | {"help": None})
        else:
            action = "store" if each.default != () else _Collected
            group.add_argument(flag, type=argument_type(kind), action=action, metavar=kind.metavar, **common)


def given(
    of: type[Any],
    args: argparse.Namespace,
    environment: Mapping[str, str],
    *,
    foreign: Mapping[str, Any] = NOTHING,
    file: Mapping[str, Any] = NOTHING,
) -> dict[str, Any]:
    """The settings of a dataclass that are set, by flag or by ``RANKWATCH_<NAME>``.

    Raises:
        ValueError: an environment variable is invalid; the text names it.
    """
    variables: dict[str, Any] = {}
    flagged: dict[str, Any] = {}
    for name, kind in kinds(of).items():
        variable = PREFIX + name.upper()
        if text := environment.get(variable, ""):
            try:
                variables[name] = kind.read_text(text)
            except ValueError as error:
                raise ValueError(f"{variable}: {error}") from None
        if name != TORCHRUN_FLAG and hasattr(args, name):
            flagged[name] = getattr(args, name)
    return {**file, **variables, **foreign, **flagged}


def before_script(argv: Sequence[str], group: argparse._ArgumentGroup | argparse.ArgumentParser) -> list[str]:
    """The launcher's own part of a command line, without the script and its arguments.

    ``group`` holds Rankwatch's flags or, when torch may be imported, is the whole parser; of other flags only whether
    they take a value is known.
    """
    actions = group._actions if isinstance(group, argparse.ArgumentParser) else group._group_actions
    known = {flag: action for action in actions for flag in action.option_strings}
    own: list[str] = []
    words = deque(argv)
    while words and words[0].startswith("-") and words[0] != "--":
        word = words.popleft()
        own.append(word)
        action = known.get(word) or _abbreviated(word, known)
        without_value = action.nargs == 0 if action is not None else word in FOREIGN_SWITCHES
        if without_value or "=" in word or (len(word) > 2 and word[1] != "-"):  # -t3 holds its value
            continue
        optional = action.choices or () if action is not None and action.nargs == "?" else None
        if words and (optional is None or words[0] in optional):  # else the word after it is the script
            own.append(words.popleft())
    return own


def unknown_flag(argv: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """The first flag before the script that the parser does not know; empty: none.

    argparse takes the word after such a flag for the script, and complains about something else.
    """
    known = {flag: action for action in parser._actions for flag in action.option_strings}
    for word in before_script(argv, parser):
        name = word.partition("=")[0]
        if name.startswith("--") and len(name) > 2 and name not in known and not any(f.startswith(name) for f in known):
            return name
    return ""


def _abbreviated(word: str, known: Mapping[str, argparse.Action]) -> argparse.Action | None:
    meant = {id(action): action for flag, action in known.items() if word.startswith("--") and flag.startswith(word)}
    return next(iter(meant.values())) if len(meant) == 1 else None


# The standby ----------------------------------------------------------------------------------------------------------


def add_standby_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags of prewarmed workers."""
    group.add_argument(
        "--standby",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep one prewarmed worker per local rank, with torch imported, for the next attempt to start in "
        f"(default: where a quarter of the memory stays available, or {STANDBY})",
    )
    group.add_argument(
        "--standby-memory",
        metavar="GIB",
        type=_size,
        help=f"limit on the memory of one prewarmed worker (default: {DEFAULT_SIZE} GiB)",
    )


def prewarm_settings(args: argparse.Namespace, env: Mapping[str, str]) -> PrewarmSettings | None:
    """The settings of prewarmed workers, flags before environment variables; None when not wanted or not possible.

    Without either the pool is automatic.

    Raises:
        ValueError: an environment variable is invalid; the text names it.
    """
    wanted = None
    if env.get(STANDBY, AUTOMATIC) not in ("", AUTOMATIC):
        try:
            wanted = parse_bool(env[STANDBY])
        except ValueError as error:
            raise ValueError(f"{STANDBY}: {error}, or {AUTOMATIC}") from None
    try:
        size = (
            args.standby_memory if args.standby_memory is not None else _size(env.get(STANDBY_MEMORY) or DEFAULT_SIZE)
        )
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{STANDBY_MEMORY}: {error}") from None
    if args.standby is not None:
        wanted = args.standby
    if wanted is False:
        return None
    from rankwatch_launcher import torch_compat  # imports torch, which the job supervisor must not

    if (complaint := torch_compat.prewarm_complaint()) is not None:
        logger.log(logging.WARNING if wanted else logging.INFO, "standby is disabled: %s", complaint)
        return None
    return PrewarmSettings(size, automatic=wanted is None)


def _size(text: str) -> int:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0.1 <= size < 1e6:
        raise argparse.ArgumentTypeError(f"must be a number of GiB, such as 2 or 0.5, not {text!r}")
    return int(size * GIB)


# Fault injection ------------------------------------------------------------------------------------------------------


def add_inject_flag(group: argparse._ArgumentGroup) -> None:
    """Add ``--inject``."""
    group.add_argument(
        "--inject",
        action="append",
        type=_faults,
        metavar="FAULT",
        help="inject a fault into a rank, for example rank=2,step=52,kind=hang (manual: faults); may be repeated",
    )


def export_faults(args: argparse.Namespace, env: MutableMapping[str, str]) -> None:
    """Check the faults given by flag, else by the environment, and export them to the ranks.

    Raises:
        ValueError: the environment variable is invalid; the text states why.
    """
    given = "; ".join(args.inject) if args.inject else env.get(VARIABLE, "")
    try:
        faults = parse_all(given)
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None
    if faults:
        env[VARIABLE] = given
    for fault in faults:
        logger.warning("a fault will be injected: %s", fault)


def check_fault_ranks(env: Mapping[str, str], world_size: int) -> None:
    """Check the exported faults against the number of ranks.

    Raises:
        ValueError: a fault is for a rank that does not exist.
    """
    for fault in parse_all(env.get(VARIABLE, "")):
        if fault.rank is not None and fault.rank >= world_size:
            raise ValueError(f"no fault can be injected into rank {fault.rank}: ranks go from 0 to {world_size - 1}")


def _faults(text: str) -> str:
    try:
        faults = parse_all(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not faults:
        raise argparse.ArgumentTypeError("names no fault")
    return text.strip().rstrip(";")


# Reading values -------------------------------------------------------------------------------------------------------


def _help(each: Field[Any]) -> str:
    text = str(each.metadata["meaning"]).replace("%", "%%")
    if each.metadata["kind"] is SECTIONS:
        return text + "; may be repeated or separated by commas"
    if isinstance(each.default, bool) or each.default in ("", ()):
        return text
    default = f"{each.default:g}" if isinstance(each.default, float) else str(each.default or 0)
    unit = f" {each.metadata['unit']}".rstrip()
    return f"{text} (default: {'off' if each.default is None else default + unit})"
