"""Lets existing code that imports ``nvidia_resiliency_ext`` run on Rankwatch unchanged: :func:`install`, or a variable.

How this works
--------------
A finder, first in ``sys.meta_path``, answers for that name and all below it. Each module it makes is empty and looks up
what is asked of it in a module of ours (:data:`OFFERED`), when it is asked: importing ``ptl_resiliency`` costs no
import of Lightning. What Rankwatch has no counterpart of comes from the real package where that is installed, its
in-process restart among it, which needs no launcher of its own; elsewhere it is not there, and callers that can do
without handle the ``ModuleNotFoundError`` as they always did.

``RANKWATCH_STAND_IN=nvrx`` has the launcher's ranks do it before the script's first line.
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

VARIABLE: Final = "RANKWATCH_STAND_IN"
NVRX: Final = "nvrx"
"""The only value of the variable so far."""
REPLACED: Final = "nvidia_resiliency_ext"
MARK: Final = "__rankwatch_stand_in__"
"""True in a module that is ours."""

_OURS: Final = "rankwatch.integrations.nvrx"
_LIGHTNING: Final = "rankwatch.integrations.lightning"
OFFERED: Final[Mapping[str, str]] = {
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
    "inprocess": "rankwatch.inprocess",
}
"""By the name below ``nvidia_resiliency_ext``: the module of ours with the same content."""
UNLESS_INSTALLED: Final = ("inprocess",)
"""Here ours has other names for some things, so the real one goes before it."""

_log = logging.getLogger("rankwatch")


class StandInError(RuntimeError):
    """The stand-in cannot take its place; says why and what to do."""


def install() -> None:
    """Stand in for ``nvidia_resiliency_ext`` from now on. A second call does nothing.

    Raises:
        StandInError: the real package has been imported already.
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
    """Give the name back; what has been imported from it stays with who has it."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    if not getattr(sys.modules.get(REPLACED), MARK, False):
        return
    for name in [name for name in sys.modules if _is_below(name)]:  # what came from the real package hangs on ours
        del sys.modules[name]


def install_as_asked(variables: Mapping[str, str] | None = None) -> None:
    """Do what ``RANKWATCH_STAND_IN`` says. Raises nothing: what is wrong is said in the log, and the script runs."""
    word = (os.environ if variables is None else variables).get(VARIABLE, "").strip().lower()
    if not word:
        return
    if word != NVRX:
        _log.warning("%s must be %s, not %r; nothing stands in for anything", VARIABLE, NVRX, word)
        return
    try:
        install()
    except StandInError as error:
        _log.warning("%s", error)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if not _is_below(fullname):
            return None
        ours = _counterpart(fullname.removeprefix(REPLACED).removeprefix("."))
        if ours is None:
            _log.info("Rankwatch stands in for %s and has no counterpart of %s", REPLACED, fullname)
            return None  # other finders look into the folders of the real package, if there is one
        spec = ModuleSpec(fullname, _Loader(ours), origin=ours, is_package=True)
        spec.submodule_search_locations = _real_folders(fullname)
        return spec


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
            raise AttributeError(
                f"{module.__name__} has no {name!r}: Rankwatch stands in for {REPLACED} here ({VARIABLE}) and has no"
                " counterpart of it"
            )

        setattr(module, MARK, True)
        module.__doc__ = f"Stands in for a module of {REPLACED}; what is in it is {ours}'s."
        module.__getattr__ = look_up  # type: ignore[method-assign]
        module.__dir__ = lambda: dir(importlib.import_module(ours))  # type: ignore[method-assign]


def _is_below(name: str) -> bool:
    return name == REPLACED or name.startswith(f"{REPLACED}.")


def _counterpart(below: str) -> str | None:
    ours = OFFERED.get(below)
    if below in UNLESS_INSTALLED and _real_folders(f"{REPLACED}.{below}"):
        return None
    try:
        return ours if ours is not None and find_spec(ours) is not None else None
    except ModuleNotFoundError:  # of a module whose own parent is not there
        return None


def _real_folders(fullname: str) -> list[str]:
    """The folders of a package of that name in the real installation; none where there is none."""
    path: list[str] | None = None
    parts = fullname.split(".")
    for count in range(1, len(parts) + 1):
        found = PathFinder.find_spec(".".join(parts[:count]), path)
        if found is None or found.submodule_search_locations is None:
            return []
        path = list(found.submodule_search_locations)
    return path or []
