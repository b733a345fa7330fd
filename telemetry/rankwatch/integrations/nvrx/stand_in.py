"""Provides the package ``nvidia_resiliency_ext``, so that code that imports it runs on Rankwatch unchanged.

A finder, first in ``sys.meta_path``, handles that name and all below it. Its modules look up attributes lazily in a
Rankwatch module (:data:`COUNTERPARTS`), so that importing ``ptl_resiliency`` does not import Lightning. A module
without a counterpart comes from the real package where that is installed, else it raises ``ModuleNotFoundError``; the
import of a name without one raises ``ImportError`` with its replacement (:mod:`.missing_names`).

:func:`install` activates it; ``RANKWATCH_STAND_IN=nvrx`` does so in the launcher's ranks before the script runs.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

from rankwatch.integrations.nvrx import missing_names
from rankwatch.integrations.nvrx.missing_names import replacement_of

VARIABLE: Final = "RANKWATCH_STAND_IN"
NVRX: Final = "nvrx"
"""The only value of the variable."""
REPLACED: Final = "nvidia_resiliency_ext"
MARK: Final = "__rankwatch_stand_in__"
"""True in a module of the stand-in."""

_OURS: Final = "rankwatch.integrations.nvrx"
_LIGHTNING: Final = "rankwatch.integrations.lightning"
_INPROCESS: Final = "rankwatch.inprocess"
COUNTERPARTS: Final[Mapping[str, str]] = {
    "": _OURS,
    "fault_tolerance": f"{_OURS}.fault_tolerance",
    "fault_tolerance.config": f"{_OURS}.config",
    "fault_tolerance.data": f"{_OURS}.fault_tolerance",
    "fault_tolerance.rank_monitor_client": f"{_OURS}.fault_tolerance",
    "straggler": f"{_OURS}.straggler",
    "straggler.reporting": f"{_OURS}.report",
    "straggler.statistics": f"{_OURS}.report",
    "straggler.straggler": f"{_OURS}.straggler",
    "attribution": _OURS,
    "attribution.straggler": f"{_OURS}.straggler",
    "attribution.straggler.reporting": f"{_OURS}.report",
    "attribution.straggler.statistics": f"{_OURS}.report",
    "attribution.straggler.straggler": f"{_OURS}.straggler",
    "ptl_resiliency": _LIGHTNING,
    "ptl_resiliency.fault_tolerance_callback": _LIGHTNING,
    "ptl_resiliency.fault_tolerance_sections_callback": _LIGHTNING,
    "ptl_resiliency.straggler_det_callback": _LIGHTNING,
    "inprocess": _INPROCESS,
    "inprocess.wrap": _INPROCESS,
    **dict.fromkeys(sorted(missing_names.MODULES), _INPROCESS),
}
"""The Rankwatch module for each name below ``nvidia_resiliency_ext``."""

_log = logging.getLogger("rankwatch")


class StandInError(RuntimeError):
    """The stand-in cannot be installed; the message has the reason and the remedy."""


def install() -> None:
    """Install the stand-in. Idempotent.

    Raises:
        StandInError: the real package is imported already.
    """
    there = sys.modules.get(REPLACED)
    if there is not None and not getattr(there, MARK, False):
        raise StandInError(
            f"{REPLACED} has been imported from {getattr(there, '__file__', None) or list(there.__path__)} already, so"
            f" its stand-in would come too late: call stand_in.install() before that, or set {VARIABLE}={NVRX}"
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def uninstall() -> None:
    """Remove the stand-in; existing references to its modules stay valid."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    if not getattr(sys.modules.get(REPLACED), MARK, False):
        return
    for name in [name for name in sys.modules if _is_below(name)]:  # including modules of the real package below ours
        del sys.modules[name]


def install_as_asked(variables: Mapping[str, str] | None = None) -> None:
    """Install the stand-in if ``RANKWATCH_STAND_IN`` is set. Never raises: errors are logged, and the script runs."""
    value = (os.environ if variables is None else variables).get(VARIABLE, "").strip().lower()
    if not value:
        return
    if value != NVRX:
        _log.warning("%s must be %s, not %r; it is ignored", VARIABLE, NVRX, value)
        return
    try:
        install()
    except StandInError as error:
        _log.warning("%s", error)


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self._logged: set[str] = set()

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if not _is_below(fullname):
            return None
        ours = _counterpart(fullname.removeprefix(REPLACED).removeprefix("."))
        if ours is None:
            self._log_missing(fullname)
            return None  # other finders search the real package, if it is installed
        spec = ModuleSpec(fullname, _Loader(ours), origin=ours, is_package=True)
        spec.submodule_search_locations = _real_folders(fullname)
        return spec

    def _log_missing(self, fullname: str) -> None:
        """Log the remedy once, since the import's own error is Python's; raising here would fail those who only ask."""
        if fullname not in self._logged and _real_spec(fullname) is None:
            self._logged.add(fullname)
            _log.warning(
                "%s has no counterpart in Rankwatch, which stands in for %s here (%s): where that package is installed "
                "it comes from there; docs/migrate-from-nvrx.md lists all names",
                *(fullname, REPLACED, VARIABLE),
            )


class _Loader(Loader):
    def __init__(self, ours: str) -> None:
        self._ours = ours

    def exec_module(self, module: ModuleType) -> None:
        ours = self._ours

        def look_up(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            found = importlib.import_module(ours)
            if not hasattr(found, name) and hasattr(found, "__path__") and find_spec(f"{ours}.{name}") is not None:
                return importlib.import_module(f"{ours}.{name}")
            if hasattr(found, name):
                return getattr(found, name)
            if f"{module.__name__}.{name}".removeprefix(f"{REPLACED}.") in COUNTERPARTS:
                return importlib.import_module(f"{module.__name__}.{name}")
            missing = f"{module.__name__} has no {name!r}: Rankwatch stands in for {REPLACED} here ({VARIABLE})"
            replacement = replacement_of(f"{module.__name__.removeprefix(f'{REPLACED}.')}.{name}")
            if replacement is not None:  # `from ... import` discards the message of an AttributeError
                raise ImportError(f"{missing}; {replacement}. docs/migrate-from-nvrx.md lists all names")
            raise AttributeError(f"{missing} and has no counterpart of it")

        setattr(module, MARK, True)
        module.__doc__ = f"Stand-in for a module of {REPLACED}, implemented by {ours}."
        module.__getattr__ = look_up  # type: ignore[method-assign]
        module.__dir__ = lambda: dir(importlib.import_module(ours))  # type: ignore[method-assign]


def _is_below(name: str) -> bool:
    return name == REPLACED or name.startswith(f"{REPLACED}.")


def _counterpart(below: str) -> str | None:
    ours = COUNTERPARTS.get(below)
    try:
        return ours if ours is not None and find_spec(ours) is not None else None
    except ModuleNotFoundError:  # a parent module is missing
        return None


def _real_folders(fullname: str) -> list[str]:
    """Return the folders of a package in the real installation; empty if it is not installed."""
    spec = _real_spec(fullname)
    return list(spec.submodule_search_locations or []) if spec is not None else []


def _real_spec(fullname: str) -> ModuleSpec | None:
    """Return the spec of a module in the real installation; None if it is not installed."""
    path: list[str] | None = None
    spec: ModuleSpec | None = None
    parts = fullname.split(".")
    for count in range(1, len(parts) + 1):
        if count > 1 and path is None:
            return None  # the parent is not a package
        spec = PathFinder.find_spec(".".join(parts[:count]), path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations) if spec.submodule_search_locations is not None else None
    return spec
