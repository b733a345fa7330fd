"""Attaches Rankwatch to an unmodified script, for ``rankwatch run --auto``.

==================  ================================================================================================
before the script   the launcher's hook (``sitecustomize``) calls :func:`begin`, which calls ``rankwatch.init()``
torch is imported   :mod:`rankwatch.integrations.autorun.torch_hooks` is installed
a framework is      :mod:`rankwatch.integrations.autorun.frameworks` wraps its evaluations and checkpoints
the script uses     its ``init()`` arguments, steps and sections replace those of ``--auto``
Rankwatch itself
==================  ================================================================================================

No error in here reaches the script: it is counted as ``auto`` in ``rankwatch.telemetry.dropped``.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

import rankwatch
from rankwatch import session
from rankwatch.integrations.autorun import frameworks
from rankwatch.integrations.autorun.errors import count_error, report
from rankwatch.integrations.autorun.training_loop import NAMES, TrainingLoop
from rankwatch.recording import sections

SAVE_MODULES: Final = ("torch.distributed.checkpoint", "safetensors.torch")
"""Modules besides torch that save checkpoints; hooked when the script imports them."""

_log = logging.getLogger("rankwatch")
_loop: TrainingLoop | None = None


def begin() -> None:
    """Attach to this process: called once, in the main thread, before the script begins. Never raises."""
    global _loop
    if _loop is not None:
        return
    try:
        session.init()
        if not session.is_initialized():
            return
        _loop = loop = TrainingLoop()
        _defer_init_to_script()
        _defer_sections_to_script(loop)
        hooks: dict[str, Callable[[ModuleType], None]] = dict.fromkeys(SAVE_MODULES, _hook_saves)
        hooks |= dict.fromkeys(frameworks.PHASES, functools.partial(frameworks.hook, loop=loop))
        _call_when_imported(hooks | {"torch": _hook_torch})
    except Exception:  # noqa: BLE001 - boundary to training code, which must run in any case
        _log.warning("--auto could not attach; this script runs without Rankwatch", exc_info=True)


def _hook_torch(torch: ModuleType) -> None:
    from rankwatch.integrations.autorun import torch_hooks  # only needed once torch is imported

    assert _loop is not None
    torch_hooks.install(torch, _loop)


def _hook_saves(_: ModuleType) -> None:
    from rankwatch.integrations.autorun import torch_hooks

    torch_hooks.hook_saves()


# Deferring to the script -------------------------------------------------------------------------------------------


def _defer_init_to_script() -> None:
    """Make the script's own ``init()`` take effect if it has arguments; otherwise a second call would be ignored."""

    def init(**given: Any) -> None:
        rankwatch.init = session.init
        if any(value is not None for value in given.values()):
            session.shutdown()
        session.init(**given)

    init.__doc__ = session.init.__doc__
    rankwatch.init = init


def _defer_sections_to_script(loop: TrainingLoop) -> None:
    """Stop recording a section as soon as the script creates it itself."""
    automatic = set(NAMES)

    def observe(name: str) -> None:
        if not isinstance(name, str) or name not in automatic:
            return
        automatic.discard(name)
        if not automatic:
            sections.observers.remove(observe)
        report(loop.defer, name)

    sections.observers.append(observe)


# After an import ----------------------------------------------------------------------------------------------------


def _call_when_imported(wanted: Mapping[str, Callable[[ModuleType], None]]) -> None:
    """Call ``wanted[name](module)`` once the module is imported, or now if it is."""
    waiting = dict(wanted)
    for name in wanted:
        module = sys.modules.get(name)
        if module is not None:
            report(waiting.pop(name), module)
    if waiting:
        sys.meta_path.insert(0, _AfterImport(waiting))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls an action after a module was loaded by the loader that the other finders return."""

    def __init__(self, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self._waiting = waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._waiting:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if not hasattr(finder, "find_spec"):
                continue  # like Python
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._follow(spec, fullname)
                return spec
        return None

    def _follow(self, spec: importlib.machinery.ModuleSpec, name: str) -> None:
        # A spec that was found may never be loaded (importlib.util.find_spec), so the entry is removed after loading.
        loader: Any = spec.loader
        try:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                vars(loader).pop("exec_module", None)  # restores the method of the class
                execute(module)
                self._loaded(name, module)

            loader.exec_module = exec_module
        except AttributeError:
            count_error()

    def _loaded(self, name: str, module: ModuleType) -> None:
        action = self._waiting.pop(name, None)
        if action is None:
            return
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        report(action, module)
