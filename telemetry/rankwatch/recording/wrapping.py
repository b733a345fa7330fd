"""Sections around callables of unmodified code: ``rankwatch.wrap(trainer, "training_step")``."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Final

from rankwatch.recording.sections import section

_MARK: Final = "__rankwatch_section__"
_log = logging.getLogger("rankwatch")


class Wrapped:
    """A wrapped callable; :meth:`undo` restores the original."""

    __slots__ = ("_before", "_name", "_own", "_target")

    def __init__(self, target: Any, name: str, before: Any, own: bool) -> None:
        self._target, self._name, self._before, self._own = target, name, before, own

    def undo(self) -> None:
        """Restore the original; a second call does nothing."""
        target, self._target = self._target, None
        if target is None:
            return
        if self._own:
            setattr(target, self._name, self._before)
        else:
            delattr(target, self._name)


def wrap(target: Any, name: str, section_name: str | None = None) -> Wrapped | None:
    """Open a section around each call of ``target.name``; return an object that undoes it.

    ``target`` is a module, a class or an object; functions, methods, static and class methods and coroutine functions
    may be wrapped. The section is called ``section_name``, else like ``DataLoader.next_batch``. Nothing is raised: what
    cannot be wrapped is logged and left as it is, and None is returned; so it is for what is already wrapped.
    """
    try:
        own = name in vars(target) if hasattr(target, "__dict__") else False
        before = inspect.getattr_static(target, name)
        found = getattr(target, name)
    except AttributeError:
        _log.warning("rankwatch.wrap: %s has no %r, so nothing is wrapped", _called(target), name)
        return None
    if hasattr(found, _MARK):
        return None
    if not callable(found) or isinstance(found, type):
        _log.warning("rankwatch.wrap: %s.%s is not a function or method, so it is not wrapped", _called(target), name)
        return None
    label = section_name or f"{_called(target)}.{name}"
    try:
        setattr(target, name, _around(target, before, found, label))
    except (AttributeError, TypeError) as error:
        _log.warning("rankwatch.wrap: %s.%s cannot be replaced: %s", _called(target), name, error)
        return None
    return Wrapped(target, name, before, own)


def _around(target: Any, before: Any, found: Callable[..., Any], label: str) -> Any:
    """The replacement: on a class the same kind of method, so that it is bound as before."""
    of_class = isinstance(target, type)
    plain = before.__func__ if of_class and isinstance(before, staticmethod | classmethod) else None
    made = section(label)(plain or (before if of_class and inspect.isfunction(before) else found))
    setattr(made, _MARK, label)
    return type(before)(made) if plain is not None else made


def _called(target: Any) -> str:
    """Short name of a module, class or object."""
    of = target if isinstance(target, type) or inspect.ismodule(target) else type(target)
    return str(getattr(of, "__name__", of)).rpartition(".")[2]
