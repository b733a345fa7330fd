"""Command-line flags and environment variables made from the fields of :class:`~rankwatch.wire.policy.Policy`.

A flag beats its environment variable; what is given in neither is left to the monitor's defaults, so only what a
person set is sent along with the registration.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, Final

from rankwatch.wire.policy import Policy, parse_section_timeouts

PREFIX: Final = "RANKWATCH_"
SECTIONS: Final = "section_timeouts"
OFF: Final = ("none", "off")
TORCH_HAS_IT: Final = "max_restarts"
"""torchrun's own flag sets this one."""
WHOLE: Final = (TORCH_HAS_IT, "max_no_progress")
"""Whole numbers."""


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


def given_policy(args: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the policy values that a person set, by flag or by ``RANKWATCH_<NAME>``, as JSON types.

    Raises:
        ValueError: an environment variable does not hold what it should; the text names it.
    """
    given: dict[str, Any] = {}
    for setting in fields(Policy):
        variable = PREFIX + setting.name.upper()
        if text := environment.get(variable, ""):
            try:
                given[setting.name] = _parse(setting, text)
                Policy().changed({setting.name: given[setting.name]})
            except ValueError as error:
                raise ValueError(f"{variable}: {error}") from None
        if setting.name != TORCH_HAS_IT and hasattr(args, setting.name):
            given[setting.name] = getattr(args, setting.name)
    return given


def _reader(name: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value: Any = None if text.lower() in OFF else text
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
        words = {
            "1": True,
            "true": True,
            "yes": True,
            "on": True,
            "0": False,
            "false": False,
            "no": False,
            "off": False,
        }
        if text.lower() not in words:
            raise ValueError(f"must be true or false, not {text!r}")
        return words[text.lower()]
    try:
        return _reader(setting.name)(text)
    except argparse.ArgumentTypeError as error:
        raise ValueError(str(error)) from None


def _help(setting: Field[Any]) -> str:
    text = str(setting.metadata["meaning"]).replace("%", "%%")
    if setting.name == SECTIONS or isinstance(setting.default, bool):
        return text
    default = (
        "off"
        if setting.default is None
        else f"{setting.default:g}"
        if isinstance(setting.default, float)
        else setting.default
    )
    unit = f" {setting.metadata['unit']}" if setting.metadata["unit"] and setting.default is not None else ""
    return f"{text} (default: {default}{unit})"
