"""``rankwatch run --auto``: a rank whose script was never touched is watched all the same.

How this works
--------------
==================  ================================================================================================
before line one     :func:`begin` is called by the launcher's hook (``sitecustomize``): ``rankwatch.init()``
torch is imported   by the script, when it likes; then :mod:`rankwatch.integrations.autorun.torch_hooks` is installed
the script itself   uses Rankwatch: what it does is left to it (its ``init()`` arguments, its steps, its sections)
==================  ================================================================================================

Nothing here may end a script: what goes wrong is counted as ``auto`` in ``rankwatch.telemetry.dropped``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

import rankwatch
from rankwatch import session
from rankwatch.integrations.autorun.training_loop import NAMES, OwnStep, TrainingLoop
from rankwatch.recording import sections
from rankwatch.recording.sections import Section

DROP_AUTO: Final = "auto"
LATER: Final = ("torch.distributed.checkpoint", "safetensors.torch")
"""What saves checkpoints and is imported by who needs it."""

_log = logging.getLogger("rankwatch")
_loop: TrainingLoop | None = None


def begin() -> None:
    """Watch this process: once, in the main thread, before the script begins. Never raises."""
    global _loop
    if _loop is not None:
        return
    try:
        session.init()
        if not session.is_initialized():
            return
        _loop = loop = TrainingLoop()
        _leave_init_to_the_script()
        _leave_sections_to_the_script(loop)
        _when_imported(dict.fromkeys(LATER, _watch_saves) | {"torch": _watch_torch})
    except Exception:  # noqa: BLE001 - the boundary to training code, which must run with or without us
        _log.warning("--auto could not begin; this script runs unwatched", exc_info=True)


def failed() -> None:
    """Something of ours went wrong while the script ran: said once, then only counted."""
    recorder = sections.attached()
    if recorder is None:
        return
    if not recorder.dropped.get(DROP_AUTO):
        _log.warning("--auto does not understand this script; more of this is only counted", exc_info=True)
    recorder.drop(DROP_AUTO)


def _watch_torch(torch: ModuleType) -> None:
    from rankwatch.integrations.autorun import torch_hooks  # late: imports what torch has

    assert _loop is not None
    torch_hooks.install(torch, _loop)


def _watch_saves(_: ModuleType) -> None:
    from rankwatch.integrations.autorun import torch_hooks

    torch_hooks.watch_saves()


# What the script does itself ----------------------------------------------------------------------------------------


def _leave_init_to_the_script() -> None:
    """The script's own ``init()`` is the one that counts, if it says anything: a second call would do nothing."""

    def init(**given: Any) -> None:
        rankwatch.init = session.init
        if any(value is not None for value in given.values()):
            session.shutdown()
        session.init(**given)

    init.__doc__ = session.init.__doc__
    rankwatch.init = init


def _leave_sections_to_the_script(loop: TrainingLoop) -> None:
    """A section that the script makes itself is not made by us too."""
    plain: Callable[[Section, str], None] = Section.__init__
    ours = set(NAMES)

    def made(self: Section, name: str) -> None:
        plain(self, name)
        if type(self) is not OwnStep and isinstance(name, str) and name in ours:
            ours.discard(name)
            try:
                loop.give_way(name)
            except Exception:  # noqa: BLE001 - as in begin()
                failed()
            if not ours:
                Section.__init__ = plain  # type: ignore[method-assign, assignment]

    Section.__init__ = made  # type: ignore[method-assign]


# After an import ----------------------------------------------------------------------------------------------------


def _when_imported(wanted: Mapping[str, Callable[[ModuleType], None]]) -> None:
    """Call ``wanted[name](module)`` once the module is there: now, or when somebody imports it."""
    waiting = dict(wanted)
    for name in wanted:
        module = sys.modules.get(name)
        if module is not None:
            _call(waiting.pop(name), module)
    if waiting:
        sys.meta_path.insert(0, _AfterImport(waiting))


def _call(action: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        action(module)
    except Exception:  # noqa: BLE001 - as in begin()
        failed()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds nothing itself; sees to it that the loader others found says when it is done."""

    def __init__(self, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self._waiting = waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._waiting:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if not hasattr(finder, "find_spec"):
                continue  # as Python does
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._follow(spec, fullname)
                return spec
        return None

    def _follow(self, spec: importlib.machinery.ModuleSpec, name: str) -> None:
        # Whether there is a torch is often asked before it is imported (importlib.util.find_spec), and a spec that was
        # found may never be loaded: only what has been loaded is waited for no more.
        loader: Any = spec.loader
        try:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                vars(loader).pop("exec_module", None)  # put over the class's own, which is to be found again
                execute(module)
                self._is_there(name, module)

            loader.exec_module = exec_module
        except AttributeError:
            failed()

    def _is_there(self, name: str, module: ModuleType) -> None:
        action = self._waiting.pop(name, None)
        if action is None:
            return
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        _call(action, module)
