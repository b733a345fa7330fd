"""Fault injection by ``FaultToleranceCallback(simulated_fault_params=...)``."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rankwatch.faults import inject, spec


@dataclass(frozen=True)
class SimulatedFaultParams:
    """A fault of one rank, ``base_delay`` to ``base_delay + rand_delay`` seconds after ``setup``.

    ``fault_type`` is rank_killed (SIGKILL), rank_hung (SIGSTOP), random (one of these), or any other kind that
    ``docs/faults.md`` lists. ``rank_to_fail``: None for a random one.
    """

    fault_type: str
    base_delay: float
    rand_delay: float = 0.0
    rank_to_fail: int | None = None

    def begin(self) -> None:
        """Schedule it, in the first attempt only."""
        inject.simulate(
            self.fault_type,
            rank="random" if self.rank_to_fail is None else self.rank_to_fail,
            delay=self.base_delay + random.random() * self.rand_delay,
        )


def parameters(given: Any) -> SimulatedFaultParams | None:
    """Convert the callback's argument: None, a mapping, or any object with the fields of :class:`SimulatedFaultParams`.

    Raises:
        ValueError: a field is missing, unknown or invalid.
    """
    made = given if given is None or isinstance(given, SimulatedFaultParams) else _read(given)
    if made is not None:
        rank = "random" if made.rank_to_fail is None else made.rank_to_fail
        spec.of({"kind": made.fault_type, "rank": rank, "delay": made.base_delay})
        if made.rand_delay < 0:
            raise ValueError(f"rand_delay of a simulated fault must be 0 or more seconds, not {made.rand_delay!r}")
    return made


def _read(given: Any) -> SimulatedFaultParams:
    names = [each.name for each in fields(SimulatedFaultParams)]
    if isinstance(given, Mapping):
        values = dict(given)
    else:
        values = {name: getattr(given, name) for name in [*names, "rank"] if hasattr(given, name)}
    if "rank" in values:  # an alias in some configurations
        rank = values.pop("rank")
        if values.setdefault("rank_to_fail", rank) != rank:
            raise ValueError("rank and rank_to_fail of a simulated fault are aliases; give one of them")
    unknown = [str(name) for name in values if name not in names]
    missing = [name for name in names[:2] if name not in values]
    if unknown or missing:
        wrong = f"lacks {', '.join(missing)}" if missing else f"does not know {', '.join(unknown)}"
        raise ValueError(f"a simulated fault {wrong}: its fields are {', '.join(names)}")
    return SimulatedFaultParams(**{str(name): value for name, value in values.items()})
