"""Parameters of NVIDIA's ft_launcher (nvidia-resiliency-ext 0.4.1 to 0.7.0), translated to Rankwatch's own.

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
from rankwatch.contract.policy import Policy
from rankwatch.contract.schema import SECONDS, kinds, timeout, whole
from rankwatch_launcher.options import SIGNAL

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
    no_restart_code: int | None = None
    """The exit code of a job that is not to be restarted, in place of 93."""
    notes: list[str] = field(default_factory=list)
    """Messages for the user, one line each."""
    _without_effect: dict[str, list[str]] = field(default_factory=dict)
    """Names of parameters by the reason why they have no effect."""

    def without_effect(self, name: str, reason: str) -> None:
        """Add a parameter that has no effect; those with the same reason share a line."""
        names = self._without_effect.setdefault(reason, [])
        before, now = _accepted(names, reason), _accepted([*names, name], reason)
        names.append(name)
        if before in self.notes:
            self.notes[self.notes.index(before)] = now
        else:
            self.notes.append(now)


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
    default: Any = None
    """Its value in ft_launcher, where Rankwatch does the same; None: a word is due whatever the value."""
    flag: str = ""
    """Its name as a flag, where that differs."""

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
        elif self.name == "no_restart_exit_code":
            translated.no_restart_code = value
        elif value not in (None, False if self.default is None else self.default):
            translated.without_effect(self.name, self.unneeded)


def _accepted(names: list[str], reason: str) -> str:
    verbs = "is accepted and has" if len(names) == 1 else "are accepted and have"
    return f"{', '.join(names)} {verbs} no effect: {reason}"


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


def _restart_policy(value: Any) -> str:
    if value not in RESTART_POLICIES:
        raise ValueError(f"must be {' or '.join(RESTART_POLICIES)}, not {value!r}")
    return str(value)


def _whole_seconds(value: Any) -> int:
    return math.ceil(timeout("it", value))


def _flag(value: Any) -> bool:
    """Parse a boolean as ft_launcher does: what is not false is true."""
    try:
        return parse_bool(str(value))
    except ValueError:
        return True


def _cycles(value: Any) -> int:
    """Parse a limit on attempts without progress; 0 and below disable it."""
    return max(0, int(value))


def _any(value: Any) -> Any:
    return value


_NICS: Final = (
    "the node check reads the state and counters of network ports; a rank that one blocks is detected by its progress"
)
_STORAGE: Final = "the node check looks at mounts; the folders that it writes to and reads are named by --check-path"
_SERVICE: Final = "no health service is asked; --check-command runs a command of one's own before each attempt"
_GPU_MEMORY: Final = (
    "the node check waits for GPU memory that an earlier attempt still holds, up to 50 s, 512 MB are tolerated"
)
_PLACES: Final = (
    "nodes of an NVLink domain get neighbouring ranks anyway; --spares names how many launchers wait as hot spares"
)
_NUMA: Final = "ranks are bound by torchrun's --numa-binding, to CPUs alone"
_PROGRESS: Final = (
    "each completed step that no earlier attempt reached is progress, and ranks report their steps themselves"
)
_ATTRIBUTION: Final = "no attribution service is asked: the cause is stated by Rankwatch's own incident (rankwatch why)"
_CYCLES: Final = "the job's record has each attempt (rankwatch report), and --outcome writes how the job ended"
_LOGS: Final = "the launcher keeps what each rank prints ('rankwatch logs'); --log-dir DIR --tee 3 keeps all of it"
PARAMETERS: Final = (
    Parameter("initial_rank_heartbeat_timeout", limit, policy="initial_heartbeat_timeout"),
    Parameter("rank_heartbeat_timeout", limit, policy="heartbeat_timeout"),
    Parameter("rank_section_timeouts", section_limits, policy="section_timeouts"),
    Parameter("rank_out_of_section_timeout", limit, policy="out_of_section_timeout"),
    Parameter("safety_factor", kinds(Policy)["learned_factor"].read, policy="learned_factor"),
    Parameter("max_no_progress_cycles", _cycles, policy="max_no_progress"),
    Parameter("rank_termination_signal", SIGNAL.read, option="rank_termination_signal"),
    Parameter("no_restart_exit_code", lambda value: whole(0, 255).read_text(str(value))),
    Parameter("log_level", log_level),
    Parameter("workload_check_interval", _any, unneeded="ranks report once a second, and limits are checked as often"),
    Parameter(
        "restart_check_interval", _any, unneeded="launchers agree on a restart in the rendezvous store, without polling"
    ),
    Parameter("node_health_check_interval", _any, unneeded="launchers watch each other's heartbeats (--node-timeout)"),
    Parameter("restart_policy", _restart_policy),
    Parameter("rdzv_impl", _any, default="barrier", unneeded="membership is Rankwatch's own"),
    Parameter("segment", _any, unneeded=_PLACES),
    Parameter("enable_nic_monitor", _flag, unneeded=_NICS),
    Parameter("enable_nic_healthcheck", _flag, unneeded=_NICS),
    Parameter("pci_topo_file", _any, unneeded=_NICS),
    Parameter("link_down_path_template", _any, unneeded=_NICS),
    Parameter("link_state_path_template", _any, unneeded=_NICS),
    Parameter("enable_dist_storage_healthcheck", _flag, unneeded=_STORAGE),
    Parameter("storage_healthcheck_path", _any, unneeded=_STORAGE, flag="storage_health_check_path"),
    Parameter("node_health_check_endpoint", _any, unneeded=_SERVICE),
    Parameter("segment_health_check_dir", _any, unneeded=_SERVICE),
    Parameter("gpu_memory_reclaim_timeout", _any, unneeded=_GPU_MEMORY),
    Parameter("gpu_memory_tolerance_mb", _any, unneeded=_GPU_MEMORY),
    Parameter("gpu_memory_poll_interval", _any, unneeded=_GPU_MEMORY),
    Parameter("numa_bind_strict", _flag, unneeded=_NUMA),
    Parameter(
        "skip_section_response", _flag, default=True, unneeded="a rank never waits for an answer to its sections"
    ),
    Parameter(
        "check_remaining_processes", _flag, unneeded="all that ranks leave behind is ended, and what survives is named"
    ),
    Parameter(
        "install_exception_hook", _flag, unneeded="the exception of each rank is recorded without a hook that ends it"
    ),
    Parameter(
        "num_warmup_iterations",
        _any,
        unneeded="a limit that is given counts from the first step on; learned ones leave first runs out",
    ),
    Parameter("min_progress_iterations", int, default=1, unneeded=_PROGRESS),
    Parameter("checkpoint_iteration_file", _any, unneeded=_PROGRESS),
    *(
        Parameter(f"attribution_{name}", _any, unneeded=_ATTRIBUTION)
        for name in (
            *("endpoint", "stop_action", "export_url", "startup_timeout", "analysis_backend", "log_level"),
            *("llm_api_key_file", "llm_base_url", "llm_model"),
        )
    ),
    *(Parameter(f"cycle_info_{name}", _any, unneeded=_CYCLES) for name in ("dir", "job_id")),
    *(
        Parameter(name, _any, unneeded=_LOGS)
        for name in (
            *("per_cycle_applog_prefix", "nvrx_logfile", "enable_log_server", "log_server_port"),
            *("log_server_log_prefix", "log_server_graceful_shutdown_timeout", "log_aggregator_count"),
            "log_leaf_max_queue_chunks",
        )
    ),
)
RENAMED: Final = (
    (Parameter("term_timeout", SECONDS.read, option="stop_grace"), "ft_launcher's name for --stop-grace"),
    (Parameter("workers_stop_timeout", _whole_seconds), "ft_launcher's name for --shutdown-timeout"),
)
"""Flags of torchrun that ft_launcher renamed."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all spellings of every parameter; the help shows one of each."""
    group = parser.add_argument_group(
        "As with ft_launcher", "For scripts written for it; the manual's page restarts has the translation."
    )
    for parameter in PARAMETERS:
        prefixes = ("--ft-", "--ft_", "--ft-param-", "--ft_param_")
        spellings = [each for name in (parameter.flag, parameter.name) if name for each in _spellings(prefixes, name)]
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
        "--ft-ignore-missing-cfg",
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
