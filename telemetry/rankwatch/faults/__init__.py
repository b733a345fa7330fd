"""Injected faults, to rehearse what happens when a rank goes wrong.

In: ``--inject``, ``RANKWATCH_INJECT`` or a call of :func:`simulate`. Out: a rank that hangs, dies, slows or raises, at
a given rank and step. Public: ``from rankwatch import faults``.
Open :mod:`~rankwatch.faults.spec` (how a fault is written) first, then ``inject`` and ``actions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankwatch.faults.inject import Fault, Kind, arm, maybe_inject, parse, parse_all, simulate

__all__ = ["Fault", "Kind", "arm", "maybe_inject", "parse", "parse_all", "simulate"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # on demand: launchers read the specification of faults, and inject none
        from rankwatch.faults import inject

        return getattr(inject, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
