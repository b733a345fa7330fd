"""Command-line flags and environment variables made from the fields of ``Policy`` and of the launcher's ``Options``.

A flag beats its environment variable; what is given in neither is left to the monitor's defaults, so only what a
person set is sent along with the registration. What came by a foreign spelling (:mod:`rankwatch_launcher.cli.nvrx`)
stands between the two, and what came from a file below both.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, Final

from rankwatch.contract.env import parse_bool
from rankwatch.contract.policy import Policy, parse_section_timeouts
from rankwatch_launcher.cli.options import Options

PREFIX: Final = "RANKWATCH_"
SECTIONS: Final = "section_timeouts"
OFF: Final = ("none", "off")
TORCH_HAS_IT: Final = "max_restarts"
"""torchrun's own flag sets this one."""
WHOLE: Final = tuple(each.name for each in fields(Policy) if type(each.default) is int)
"""Whole numbers."""
WORDS: Final = tuple(each.name for each in fields(Policy) if isinstance(each.default, str))
"""Settings that are words; "off" and "none" may be among them, and switch no limit off."""
NOTHING: Final[Mapping[str, Any]] = {}
FOREIGN_SWITCHES: Final = (
    *("-h", "--help", "--standalone", "-m", "--module", "--virtual-local-rank", "--virtual_local_rank"),
    *("--no-python", "--no_python", "--run-path", "--run_path"),
    *("--ignore-missing-fault-tol-cfg", "--ignore_missing_fault_tol_cfg"),
)
"""Flags of torchrun and ft_launcher without a value; all others have one. A test compares them with the parser."""


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


def add_policy_flags(group: argparse._ArgumentGroup) -> None:
    """Add one flag for each policy value but ``max_restarts``."""
    for setting in fields(Policy):
        if setting.name == TORCH_HAS_IT:
            continue
        flag, dest = "--" + setting.name.replace("_", "-"), setting.name
        meaning = _help(setting)
        if setting.name == SECTIONS:
            group.add_argument(
                "--section-timeout",
                "--section-timeouts",
                dest=dest,
                action=_SectionTimeouts,
                metavar="NAME=SECONDS",
                default=argparse.SUPPRESS,
                help=meaning + "; may be repeated or separated by commas",
            )
        elif isinstance(setting.default, bool):
            group.add_argument(
                flag, dest=dest, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=meaning
            )
        else:
            metavar = "SECONDS" if setting.metadata["unit"] == "s" else setting.name.upper()
            group.add_argument(
                flag, dest=dest, type=_reader(setting.name), metavar=metavar, default=argparse.SUPPRESS, help=meaning
            )


def add_option_flags(group: argparse._ArgumentGroup) -> None:
    """Add one flag for each of the launcher's options that has a meaning."""
    for option in fields(Options):
        if not option.metadata:
            continue
        flag, meaning = "--" + option.name.replace("_", "-"), option.metadata["meaning"].replace("%", "%%")
        if isinstance(option.default, bool):
            group.add_argument(
                flag, dest=option.name, action="store_true", default=argparse.SUPPRESS, help=f"{meaning}"
            )
            continue
        unit = f" {option.metadata['unit']}".rstrip()
        group.add_argument(
            flag,
            dest=option.name,
            type=_argument(option.metadata["read"]),
            metavar=option.metadata["metavar"],
            default=argparse.SUPPRESS,
            help=meaning if option.default == "" else f"{meaning} (default: {_short(option.default)}{unit})",
        )


def given_options(
    args: argparse.Namespace,
    environment: Mapping[str, str],
    *,
    foreign: Mapping[str, Any] = NOTHING,
    file: Mapping[str, Any] = NOTHING,
) -> dict[str, Any]:
    """Return the launcher's options that a person set, by flag or by ``RANKWATCH_<NAME>``.

    Raises:
        ValueError: an environment variable does not hold what it should; the text names it.
    """
    given: dict[str, Any] = {}
    for option in fields(Options):
        variable = PREFIX + option.name.upper()
        if option.metadata and (text := environment.get(variable, "")):
            try:
                given[option.name] = (
                    parse_bool(text) if isinstance(option.default, bool) else option.metadata["read"](text)
                )
            except ValueError as error:
                raise ValueError(f"{variable}: {error}") from None
    flagged = {f.name: getattr(args, f.name) for f in fields(Options) if f.metadata and hasattr(args, f.name)}
    return {**file, **given, **foreign, **flagged}


def before_script(argv: Sequence[str], group: argparse._ArgumentGroup | argparse.ArgumentParser) -> list[str]:
    """Return the launcher's own part of a command line, without the script and what belongs to it.

    ``group`` holds our flags; where it is not the whole parser, which takes torch to make, the others are known by
    whether they take a value.
    """
    actions = group._actions if isinstance(group, argparse.ArgumentParser) else group._group_actions
    ours = {flag: action for action in actions for flag in action.option_strings}
    own: list[str] = []
    words = iter(argv)
    for word in words:
        if not word.startswith("-") or word == "--":
            break
        own.append(word)
        action = ours.get(word) or _abbreviated(word, ours)
        alone = action.nargs == 0 if action is not None else word in FOREIGN_SWITCHES
        if alone or "=" in word or (len(word) > 2 and word[1] != "-"):  # -t3 holds its value
            continue
        own.extend(value for value in (next(words, None),) if value is not None)
    return own


def _abbreviated(word: str, ours: Mapping[str, argparse.Action]) -> argparse.Action | None:
    meant = {id(action): action for flag, action in ours.items() if word.startswith("--") and flag.startswith(word)}
    return next(iter(meant.values())) if len(meant) == 1 else None


def given_policy(
    args: argparse.Namespace,
    environment: Mapping[str, str],
    *,
    foreign: Mapping[str, Any] = NOTHING,
    file: Mapping[str, Any] = NOTHING,
) -> dict[str, Any]:
    """Return the policy values that a person set, by flag or by ``RANKWATCH_<NAME>``, as JSON types.

    Raises:
        ValueError: an environment variable does not hold what it should; the text names it.
    """
    given: dict[str, Any] = {}
    flagged: dict[str, Any] = {}
    for setting in fields(Policy):
        variable = PREFIX + setting.name.upper()
        if text := environment.get(variable, ""):
            try:
                given[setting.name] = _parse(setting, text)
                Policy().changed({setting.name: given[setting.name]})
            except ValueError as error:
                raise ValueError(f"{variable}: {error}") from None
        if setting.name != TORCH_HAS_IT and hasattr(args, setting.name):
            flagged[setting.name] = getattr(args, setting.name)
    return {**file, **given, **foreign, **flagged}


def _argument(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same reader for argparse, which shows the words of no other error."""

    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _reader(name: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value: Any = None if text.lower() in OFF and name not in WORDS else text
        if name in WHOLE:
            value = int(text) if text.isdigit() else text
        try:
            checked = getattr(Policy().changed({name: value}), name)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return str(checked) if isinstance(checked, str) else checked

    return read


def _parse(setting: Field[Any], text: str) -> Any:
    if setting.name == SECTIONS:
        return parse_section_timeouts(text)
    if isinstance(setting.default, bool):
        return parse_bool(text)
    try:
        return _reader(setting.name)(text)
    except argparse.ArgumentTypeError as error:
        raise ValueError(str(error)) from None


def _help(setting: Field[Any]) -> str:
    text = str(setting.metadata["meaning"]).replace("%", "%%")
    if setting.name == SECTIONS or isinstance(setting.default, bool):
        return text
    default = "off" if setting.default is None else _short(setting.default)
    unit = f" {setting.metadata['unit']}" if setting.metadata["unit"] and setting.default is not None else ""
    return f"{text} (default: {default}{unit})"
