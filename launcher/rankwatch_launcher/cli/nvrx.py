"""The parameters that users of NVIDIA's ft_launcher know, turned into our policy and options.

Every one may be written ``--ft-rank-heartbeat-timeout``, ``--ft-rank_heartbeat_timeout`` or, as it once was,
``--ft-param-rank_heartbeat_timeout``; dashes and underscores mean the same everywhere. It may also stand in a YAML file
(:mod:`rankwatch_launcher.cli.ft_file`). Of two sources the first of these counts: our own flag, a flag of this kind, a
``RANKWATCH_`` variable, the file.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from rankwatch.contract.env import parse_bool
from rankwatch.contract.policy import Policy, timeout
from rankwatch_launcher.cli.options import seconds, signal_name

OFF: Final = ("none", "null", "")
LOG_LEVELS: Final = {"debug": 10, "dbg": 10, "info": 20, "warning": 30, "warn": 30, "error": 40, "critical": 50}
RESTART_POLICIES: Final = ("any-failed", "min-healthy")
DEST: Final = "ft_"
FILE: Final = "ft_cfg_path"
IGNORE_MISSING: Final = "ft_ignore_missing_cfg"


@dataclass
class Given:
    """What one source says, in our own words."""

    policy: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    log_level: int | None = None
    shutdown_timeout: int | None = None
    """For torchrun's flag of that name."""
    notes: list[str] = field(default_factory=list)
    """What a person should know about it, each in one line."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of ft_launcher."""

    name: str
    read: Callable[[Any], Any]
    policy: str = ""
    """The value of our policy that it sets."""
    option: str = ""
    """The option of our launcher that it sets."""
    unneeded: str = ""
    """Why nothing is done about it."""

    def take(self, value: Any, given: Given) -> None:
        """Put a value that was read where it belongs."""
        if self.policy:
            given.policy[self.policy] = value
        elif self.option:
            given.options[self.option] = value
        elif self.name == "log_level":
            given.log_level = value
        elif self.name == "workers_stop_timeout":
            given.shutdown_timeout = value
        elif self.name == "restart_policy":
            if value != RESTART_POLICIES[0]:
                given.notes.append(
                    f"the restart policy {value} is not offered: all ranks are restarted when any has failed, and a "
                    "lost node is replaced by a spare (--spares) or waited for"
                )
        elif value not in (None, False):
            given.notes.append(f"{self.name} is accepted and needs nothing here: {self.unneeded}")


def limit(value: Any) -> float | None:
    """Read seconds, or a word for "no limit" as None.

    Raises:
        ValueError: it is neither.
    """
    return None if _off(value) else timeout("a timeout", value)


def section_limits(value: Any) -> dict[str, float | None]:
    """Read ``setup:600,step:180`` or a mapping of the same; ``none``, ``null`` or nothing takes a section's limit away.

    Raises:
        ValueError: a part is not NAME:SECONDS.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        parts = [part.strip() for part in str(value).split(",") if part.strip()]
        if wrong := [part for part in parts if ":" not in part.replace("=", ":")]:
            raise ValueError(f"section timeouts are written NAME:SECONDS, for example step:180; {wrong[0]!r} is not")
        value = dict(part.replace("=", ":").split(":", 1) for part in parts)
    limits = {
        str(name).strip(): None if _off(each) else timeout(f"the timeout of section {str(name).strip()!r}", each)
        for name, each in value.items()
    }
    Policy().changed({"section_timeouts": limits})
    return limits


def log_level(value: Any) -> int:
    """Read a level, by name or as Python's number.

    Raises:
        ValueError: there is no such level.
    """
    text = str(value).strip().lower()
    level = LOG_LEVELS.get(text, int(text) if text.isascii() and text.isdigit() else 0)
    if not logging.DEBUG <= level <= logging.CRITICAL:
        raise ValueError(f"must be debug, info, warning, error, critical or a number from 10 to 50, not {value!r}")
    return level


def _off(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in OFF)


def _factor(value: Any) -> float:
    return float(Policy().changed({"learned_factor": value}).learned_factor)


def _restart_policy(value: Any) -> str:
    if value not in RESTART_POLICIES:
        raise ValueError(f"must be {' or '.join(RESTART_POLICIES)}, not {value!r}")
    return str(value)


def _whole_seconds(value: Any) -> int:
    return math.ceil(timeout("it", value))


def _signal(value: Any) -> str:
    return signal_name(str(value))


def _flag(value: Any) -> bool:
    return parse_bool(str(value))


def _any(value: Any) -> Any:
    return value


_NICS: Final = "network cards are not looked at; a rank that one of them holds up is found by what it does not do"
PARAMETERS: Final = (
    Parameter("initial_rank_heartbeat_timeout", limit, policy="initial_heartbeat_timeout"),
    Parameter("rank_heartbeat_timeout", limit, policy="heartbeat_timeout"),
    Parameter("rank_section_timeouts", section_limits, policy="section_timeouts"),
    Parameter("rank_out_of_section_timeout", limit, policy="out_of_section_timeout"),
    Parameter("safety_factor", _factor, policy="learned_factor"),
    Parameter("rank_termination_signal", _signal, option="rank_termination_signal"),
    Parameter("log_level", log_level),
    Parameter(
        "workload_check_interval", _any, unneeded="ranks report once a second, and their limits are checked as often"
    ),
    Parameter(
        "restart_check_interval", _any, unneeded="launchers agree on a restart in the rendezvous store, nobody polls"
    ),
    Parameter("node_health_check_interval", _any, unneeded="launchers watch each other all the time (--node-timeout)"),
    Parameter("restart_policy", _restart_policy),
    Parameter("enable_nic_monitor", _flag, unneeded=_NICS),
    Parameter("pci_topo_file", _any, unneeded=_NICS),
    Parameter("link_down_path_template", _any, unneeded=_NICS),
)
RENAMED: Final = (
    (Parameter("term_timeout", seconds, option="stop_grace"), "ft_launcher's name for --stop-grace"),
    (Parameter("workers_stop_timeout", _whole_seconds), "ft_launcher's name for --shutdown-timeout"),
)
"""Flags of torchrun's kind that ft_launcher has under names of its own."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add every spelling of every parameter, of which the help shows one."""
    group = parser.add_argument_group(
        "As with ft_launcher", "For scripts written for it; docs/restarts.md says what each becomes here."
    )
    for parameter in PARAMETERS:
        spellings = _spellings(("--ft-", "--ft_", "--ft-param-", "--ft_param_"), parameter.name)
        if parameter.name == "restart_policy":
            spellings += _spellings(("--",), parameter.name)
        ours = (parameter.policy or parameter.option).replace("_", "-")
        _add(group, parameter, spellings, f"sets --{ours}" if ours else "")
    for parameter, meaning in RENAMED:
        _add(group, parameter, _spellings(("--",), parameter.name), meaning)
    files = [*_spellings(("--ft-", "--ft_"), "cfg_path"), *_spellings(("--",), "fault_tol_cfg_path")]
    meaning = "YAML file with a section fault_tolerance; flags beat it"
    group.add_argument(files[0], dest=FILE, metavar="FILE", default=None, help=meaning)
    group.add_argument(*files[1:], dest=FILE, metavar="FILE", default=None, help=argparse.SUPPRESS)
    group.add_argument(
        "--ignore-missing-fault-tol-cfg",
        "--ignore_missing_fault_tol_cfg",
        dest=IGNORE_MISSING,
        action="store_true",
        help="go on when that file, or the section in it, is missing",
    )


def from_flags(args: argparse.Namespace, env: Mapping[str, str]) -> Given:
    """Return what the flags say; ``PET_TERM_TIMEOUT`` and ``PET_WORKERS_STOP_TIMEOUT`` stand for theirs.

    Raises:
        ValueError: a variable does not hold what it should; the text names it.
    """
    given = Given()
    for parameter in PARAMETERS:
        if hasattr(args, DEST + parameter.name):
            parameter.take(getattr(args, DEST + parameter.name), given)
    for parameter, _ in RENAMED:
        variable = f"PET_{parameter.name.upper()}"
        if hasattr(args, DEST + parameter.name):
            parameter.take(getattr(args, DEST + parameter.name), given)
        elif env.get(variable):
            parameter.take(read(parameter, env[variable], variable), given)
    return given


def read(parameter: Parameter, value: Any, where: str) -> Any:
    """Read one value.

    Raises:
        ValueError: it cannot be; the text says where it stands.
    """
    try:
        return parameter.read(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from None


def _add(group: argparse._ArgumentGroup, parameter: Parameter, spellings: list[str], meaning: str) -> None:
    def convert(text: str) -> Any:
        try:
            return parameter.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    meaning = meaning or ("accepted; nothing is needed" if parameter.unneeded else f"{parameter.name} of ft_launcher")
    for flags, text in ((spellings[:1], meaning), (spellings[1:], argparse.SUPPRESS)):
        group.add_argument(
            *flags,
            dest=DEST + parameter.name,
            type=convert,
            metavar="VALUE",
            default=argparse.SUPPRESS,
            help=text,
        )


def _spellings(prefixes: tuple[str, ...], name: str) -> list[str]:
    """Every way to write a flag, dashes and underscores mixed as ft_launcher mixes them; the modern one comes first."""
    modern = name.replace("_", "-")
    return list(dict.fromkeys(prefix + word for prefix, word in product(prefixes, (modern, name))))
