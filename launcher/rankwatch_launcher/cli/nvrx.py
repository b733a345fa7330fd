"""Parameters of NVIDIA's ft_launcher (nvidia-resiliency-ext), translated to Rankwatch's policy and options.

Each is accepted as ``--ft-rank-heartbeat-timeout``, ``--ft-rank_heartbeat_timeout`` and, in the older form,
``--ft-param-rank_heartbeat_timeout``; dashes and underscores are equivalent. Each may also stand in a YAML file
(``--ft-cfg-path``), in a section ``fault_tolerance`` at any depth. Precedence: Rankwatch's flag, ft_launcher's flag,
``RANKWATCH_`` variable, file. An unknown key of the file is logged and ignored: files of newer releases hold more.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

from rankwatch.contract.env import parse_bool
from rankwatch.contract.policy import Policy, timeout
from rankwatch_launcher.options import seconds, signal_name

OFF: Final = ("none", "null", "")
LOG_LEVELS: Final = {"debug": 10, "dbg": 10, "info": 20, "warning": 30, "warn": 30, "error": 40, "critical": 50}
RESTART_POLICIES: Final = ("any-failed", "min-healthy")
DEST: Final = "ft_"
FILE: Final = "ft_cfg_path"
IGNORE_MISSING: Final = "ft_ignore_missing_cfg"
SECTION: Final = "fault_tolerance"
VARIABLES: Final = ("RANKWATCH_FT_CFG_PATH", f"PET_{FILE.upper()}")
YAML_NOT_INSTALLED: Final = "reading it needs PyYAML, which is not installed: pip install 'rankwatch[yaml]'"


@dataclass
class Translated:
    """The settings of one source, as Rankwatch's."""

    policy: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    log_level: int | None = None
    shutdown_timeout: int | None = None
    """For torchrun's flag of that name."""
    notes: list[str] = field(default_factory=list)
    """Messages for the user, one line each."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of ft_launcher."""

    name: str
    read: Callable[[Any], Any]
    policy: str = ""
    """The policy value that it sets."""
    option: str = ""
    """The launcher option that it sets."""
    unneeded: str = ""
    """Why it has no effect."""

    def translate(self, value: Any, translated: Translated) -> None:
        """Add a parsed value to the settings."""
        if self.policy:
            translated.policy[self.policy] = value
        elif self.option:
            translated.options[self.option] = value
        elif self.name == "log_level":
            translated.log_level = value
        elif self.name == "workers_stop_timeout":
            translated.shutdown_timeout = value
        elif self.name == "restart_policy":
            if value != RESTART_POLICIES[0]:
                translated.notes.append(
                    f"the restart policy {value} is not supported: all ranks are restarted when any has failed, and a "
                    "lost node is replaced by a spare (--spares) or waited for"
                )
        elif value not in (None, False):
            translated.notes.append(f"{self.name} is accepted and has no effect: {self.unneeded}")


def limit(value: Any) -> float | None:
    """Parse seconds; ``none``, ``null`` or nothing disables the limit.

    Raises:
        ValueError: neither.
    """
    return None if _off(value) else timeout("a timeout", value)


def section_limits(value: Any) -> dict[str, float | None]:
    """Parse ``setup:600,step:180`` or such a mapping; ``none``, ``null`` or nothing disables a section's limit.

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
    """Parse a log level, by name or number.

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


_NICS: Final = "network cards are not monitored; a rank that one of them blocks is detected by its missing progress"
PARAMETERS: Final = (
    Parameter("initial_rank_heartbeat_timeout", limit, policy="initial_heartbeat_timeout"),
    Parameter("rank_heartbeat_timeout", limit, policy="heartbeat_timeout"),
    Parameter("rank_section_timeouts", section_limits, policy="section_timeouts"),
    Parameter("rank_out_of_section_timeout", limit, policy="out_of_section_timeout"),
    Parameter("safety_factor", _factor, policy="learned_factor"),
    Parameter("rank_termination_signal", _signal, option="rank_termination_signal"),
    Parameter("log_level", log_level),
    Parameter("workload_check_interval", _any, unneeded="ranks report once a second, and limits are checked as often"),
    Parameter(
        "restart_check_interval", _any, unneeded="launchers agree on a restart in the rendezvous store, without polling"
    ),
    Parameter("node_health_check_interval", _any, unneeded="launchers watch each other's heartbeats (--node-timeout)"),
    Parameter("restart_policy", _restart_policy),
    Parameter("enable_nic_monitor", _flag, unneeded=_NICS),
    Parameter("pci_topo_file", _any, unneeded=_NICS),
    Parameter("link_down_path_template", _any, unneeded=_NICS),
)
RENAMED: Final = (
    (Parameter("term_timeout", seconds, option="stop_grace"), "ft_launcher's name for --stop-grace"),
    (Parameter("workers_stop_timeout", _whole_seconds), "ft_launcher's name for --shutdown-timeout"),
)
"""Flags of torchrun that ft_launcher renamed."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all spellings of every parameter; the help shows one of each."""
    group = parser.add_argument_group(
        "As with ft_launcher", "For scripts written for it; docs/restarts.md has the translation."
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
    meaning = "YAML file with a section fault_tolerance; flags take precedence"
    group.add_argument(files[0], dest=FILE, metavar="FILE", default=None, help=meaning)
    group.add_argument(*files[1:], dest=FILE, metavar="FILE", default=None, help=argparse.SUPPRESS)
    group.add_argument(
        "--ignore-missing-fault-tol-cfg",
        "--ignore_missing_fault_tol_cfg",
        dest=IGNORE_MISSING,
        action="store_true",
        help="continue when that file, or its section, is missing",
    )


def from_flags(args: argparse.Namespace, env: Mapping[str, str]) -> Translated:
    """Translate the flags; ``PET_TERM_TIMEOUT`` and ``PET_WORKERS_STOP_TIMEOUT`` are their variables.

    Raises:
        ValueError: a variable is invalid; the text names it.
    """
    translated = Translated()
    for parameter in PARAMETERS:
        if hasattr(args, DEST + parameter.name):
            parameter.translate(getattr(args, DEST + parameter.name), translated)
    for parameter, _ in RENAMED:
        variable = f"PET_{parameter.name.upper()}"
        if hasattr(args, DEST + parameter.name):
            parameter.translate(getattr(args, DEST + parameter.name), translated)
        elif env.get(variable):
            parameter.translate(read(parameter, env[variable], variable), translated)
    return translated


def read(parameter: Parameter, value: Any, where: str) -> Any:
    """Parse one value.

    Raises:
        ValueError: it is invalid; the text states where.
    """
    try:
        return parameter.read(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from None


# The YAML file --------------------------------------------------------------------------------------------------------


def from_file(args: argparse.Namespace, env: Mapping[str, str]) -> Translated:
    """Translate the YAML file given by flag or by ``PET_FT_CFG_PATH``, if any.

    Like ft_launcher it accepts a file without the section beside flags; an empty file or section it always accepts.

    Raises:
        ValueError: it is invalid; the text names the file and the reason.
    """
    translated = Translated()
    name = getattr(args, FILE, None) or next((env[name] for name in VARIABLES if env.get(name)), "")
    if not name:
        return translated
    try:
        content = _load(Path(name))
        section = _section_of(content)
    except FileNotFoundError:
        return _missing(translated, args, f"{name} does not exist")
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if section is None:
        if content is None or _names_section(content) or any(hasattr(args, DEST + each.name) for each in PARAMETERS):
            translated.notes.append(f"{name} has no settings in a section {SECTION}; continuing without it")
            return translated
        return _missing(translated, args, f"{name} has no section {SECTION}")
    if not isinstance(section, Mapping):
        raise ValueError(f"{name}: {SECTION} must be a mapping, not {section!r}")
    known = {parameter.name: parameter for parameter in PARAMETERS}
    for key, value in section.items():
        if (parameter := known.get(str(key).replace("-", "_"))) is None:
            translated.notes.append(f"{name}: unknown key {key!r} in {SECTION} ignored; {_known()}")
        elif value is not None or parameter.policy:  # null is a value of limits only
            parameter.translate(read(parameter, value, f"{name}: {key}"), translated)
    return translated


def _known() -> str:
    return "known keys: " + ", ".join(sorted(parameter.name for parameter in PARAMETERS))


def _missing(translated: Translated, args: argparse.Namespace, what: str) -> Translated:
    if not getattr(args, IGNORE_MISSING, False):
        raise ValueError(f"{what}; --ignore-missing-fault-tol-cfg continues without it")
    translated.notes.append(f"{what}; continuing without it")
    return translated


def _load(path: Path) -> Any:
    text = path.read_text()
    try:
        import yaml  # an optional dependency
    except ModuleNotFoundError:
        raise ValueError(YAML_NOT_INSTALLED) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"invalid YAML: {' '.join(str(error).split())}") from None


def _section_of(content: Any) -> Any:
    """The first section of that name, searched from the top down; None when there is none."""
    if isinstance(content, Mapping):
        if content.get(SECTION) is not None:
            return content[SECTION]
        content = list(content.values())
    if isinstance(content, list):
        for part in content:
            if (found := _section_of(part)) is not None:
                return found
    return None


def _names_section(content: Any) -> bool:
    """Whether a mapping at any depth has the section's key, with whatever value."""
    if isinstance(content, Mapping):
        return SECTION in content or any(map(_names_section, content.values()))
    return isinstance(content, list) and any(map(_names_section, content))


# Flags ----------------------------------------------------------------------------------------------------------------


def _add(group: argparse._ArgumentGroup, parameter: Parameter, spellings: list[str], meaning: str) -> None:
    def convert(text: str) -> Any:
        try:
            return parameter.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    meaning = meaning or ("accepted without effect" if parameter.unneeded else f"{parameter.name} of ft_launcher")
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
    """All spellings of a flag, with ft_launcher's mix of dashes and underscores; the current one comes first."""
    modern = name.replace("_", "-")
    return list(dict.fromkeys(prefix + word for prefix, word in product(prefixes, (modern, name))))
