"""The YAML file of ft_launcher's users (``--ft-cfg-path``): its section ``fault_tolerance``, at any depth.

A key that is not known is named and changes nothing: files of newer releases hold more than a job needs to run.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rankwatch_launcher.cli.nvrx import FILE, IGNORE_MISSING, PARAMETERS, Given, read

SECTION: Final = "fault_tolerance"
VARIABLES: Final = ("RANKWATCH_FT_CFG_PATH", f"PET_{FILE.upper()}")
HOW_TO_GET_YAML: Final = "reading it needs PyYAML, which is not installed: pip install 'rankwatch[yaml]'"


def from_file(args: argparse.Namespace, env: Mapping[str, str]) -> Given:
    """Return what the YAML file says, if one is named by flag or by ``PET_FT_CFG_PATH``.

    Raises:
        ValueError: it cannot be used; the text names the file and says why.
    """
    given = Given()
    name = getattr(args, FILE, None) or next((env[name] for name in VARIABLES if env.get(name)), "")
    if not name:
        return given
    try:
        section = _section_of(_load(Path(name)))
    except FileNotFoundError:
        return _missing(given, args, f"{name} is not there")
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if section is None:
        return _missing(given, args, f"{name} has no section {SECTION}")
    if not isinstance(section, Mapping):
        raise ValueError(f"{name}: {SECTION} must hold names and values, not {section!r}")
    known = {parameter.name: parameter for parameter in PARAMETERS}
    for key, value in section.items():
        if (parameter := known.get(str(key).replace("-", "_"))) is None:
            given.notes.append(f"{name}: {key!r} in {SECTION} is not known and changes nothing; {_known()}")
        elif value is not None or parameter.policy:  # null is a value for limits alone
            parameter.take(read(parameter, value, f"{name}: {key}"), given)
    return given


def _known() -> str:
    return "known are: " + ", ".join(sorted(parameter.name for parameter in PARAMETERS))


def _missing(given: Given, args: argparse.Namespace, what: str) -> Given:
    if not getattr(args, IGNORE_MISSING, False):
        raise ValueError(f"{what}; --ignore-missing-fault-tol-cfg goes on without")
    given.notes.append(f"{what}; going on without")
    return given


def _load(path: Path) -> Any:
    text = path.read_text()
    try:
        import yaml  # an extra: only who brings such a file needs it
    except ModuleNotFoundError:
        raise ValueError(HOW_TO_GET_YAML) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"it is not YAML that can be read: {' '.join(str(error).split())}") from None


def _section_of(content: Any) -> Any:
    """The first section of that name, looked for from the top down; None when there is none."""
    if isinstance(content, Mapping):
        if content.get(SECTION) is not None:
            return content[SECTION]
        content = list(content.values())
    if isinstance(content, list):
        for part in content:
            if (found := _section_of(part)) is not None:
                return found
    return None
