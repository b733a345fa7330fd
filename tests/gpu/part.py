"""One part of the GPU kit: a function, its time limit, and what it proves. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class CannotRunError(Exception):
    """Something that this part needs is missing here; the message names it."""


@dataclass(frozen=True)
class Context:
    """Where a part runs."""

    cuda: bool
    """False in a dry run: the part does what it can on the CPU."""
    folder: Path
    """For its files; it exists and is empty."""
    jobs: bool = False
    """In a dry run: also run the training jobs, on the CPU, with faults that stand in for those of a GPU."""

    @property
    def device(self) -> str:
        """Torch's name of the device."""
        return "cuda" if self.cuda else "cpu"


Figures = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """``run`` returns figures; it raises :class:`CannotRunError`, or anything else for a failure."""

    name: str
    limit: float
    """Seconds after which it is ended."""
    proves: str
    run: Callable[[Context], Figures]


PARTS: dict[str, Part] = {}
"""In the order in which they run: the first ones are the ones that matter most when time runs out."""


def part(
    name: str, *, limit: float, proves: str
) -> Callable[[Callable[[Context], Figures]], Callable[[Context], Figures]]:
    """Register a part."""

    def register(run: Callable[[Context], Figures]) -> Callable[[Context], Figures]:
        assert name not in PARTS
        PARTS[name] = Part(name, limit, proves, run)
        return run

    return register


def require(module: str) -> Any:
    """Import a module.

    Raises:
        CannotRunError: it is not installed.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise CannotRunError(f"{module} cannot be imported: {error}") from None
