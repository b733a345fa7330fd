"""A fault on purpose, described as ``FaultToleranceCallback(simulated_fault_params=...)`` takes it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rankwatch.faults import inject, spec


@dataclass(frozen=True)
class SimulatedFaultParams:
    """A fault that strikes one rank once, ``base_delay`` to ``base_delay + rand_delay`` seconds after setup began.

    ``fault_type`` is rank_killed (SIGKILL), rank_hung (SIGSTOP), random (one of them), or any other kind that
    ``docs/faults.md`` lists. ``rank_to_fail``: None for a random one.
    """

    fault_type: str
    base_delay: float
    rand_delay: float = 0.0
    rank_to_fail: int | None = None

    def begin(self) -> None:
        """Have it strike, in the first attempt only: the restarted job is to get past it."""
        inject.simulate(
            self.fault_type,
            rank="random" if self.rank_to_fail is None else self.rank_to_fail,
            delay=self.base_delay + random.random() * self.rand_delay,
        )


def parameters(given: Any) -> SimulatedFaultParams | None:
    """Read what the callback was given: None, a mapping, or any object with the fields of the class above.

    Raises:
        ValueError: a field is missing, unknown or makes no sense.
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
    if "rank" in values:  # the name that some configurations use
        rank = values.pop("rank")
        if values.setdefault("rank_to_fail", rank) != rank:
            raise ValueError("rank and rank_to_fail of a simulated fault are two names of one field; give one of them")
    unknown = [str(name) for name in values if name not in names]
    missing = [name for name in names[:2] if name not in values]
    if unknown or missing:
        wrong = f"lacks {', '.join(missing)}" if missing else f"does not know {', '.join(unknown)}"
        raise ValueError(f"a simulated fault {wrong}: its fields are {', '.join(names)}")
    return SimulatedFaultParams(**{str(name): value for name, value in values.items()})
