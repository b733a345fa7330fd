"""What else changed when steps began to take another time: policy, world, hosts, clocks, throttling, heat, CPU.

They are told as such. That two things happened at the same time makes neither the reason of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rankwatch_monitor.core.regression.comparison import Circumstance, Sides, place, slowest_rank, span, usual
from rankwatch_monitor.core.regression.sample import Sample

NEAR: Final = 3
"""Samples on each side of the change whose marks count as being of the same time."""
CLOCK: Final = 0.03
CLOCK_MIN: Final = 0.05
"""Change of the median and of the lowest clock that is told, as a part."""
HEAT: Final = 5.0
"""Degrees."""
WAIT: Final = 0.05
"""Change of the wait for a CPU, as a share of the change of the step."""
LATE: Final = 0.1
"""Lateness of a rank that became the slowest, as a share of the change of the step."""
NAMED: Final = 5
"""Hosts that are named."""


def circumstances(sides: Sides) -> tuple[Circumstance, ...]:
    """All that changed besides, those that more often are the reason first."""
    looks: Sequence[Callable[[Sides], list[Circumstance]]] = (
        _policy,
        _world,
        _hosts,
        _throttled,
        _clock,
        _cpu,
        _attempt,
        _temperature,
        _slowest,
    )
    return tuple(found for look in looks for found in look(sides))


def _policy(sides: Sides) -> list[Circumstance]:
    near = [*sides.before[-NEAR:], *sides.after[:NEAR]]
    return [
        Circumstance(
            "policy", f"the policy's {c.name} was changed from {_value(c.old)} to {_value(c.new)}", c.old, c.new
        )
        for sample in near
        for c in sample.changes
    ]


def _value(value: Any) -> str:
    text = "none" if value is None else {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _world(sides: Sides) -> list[Circumstance]:
    before, after = sides.before[-1].ranks, sides.after[0].ranks
    if before == after:
        return []
    words = f"the world {'shrank' if after < before else 'grew'} from {before} to {after} ranks"
    return [Circumstance("world_size", words, before, after)]


def _attempt(sides: Sides) -> list[Circumstance]:
    before, after = sides.before[-1].attempt, sides.after[0].attempt
    if before == after:
        return []
    return [Circumstance("attempt", f"attempt {after} began (before it: {before})", before, after)]


def _hosts(sides: Sides) -> list[Circumstance]:
    before, after = sides.before[-1].hosts, sides.after[0].hosts
    if not before or not after or before == after:
        return []
    went, came = sorted(set(before) - set(after)), sorted(set(after) - set(before))
    words = [f"{_named(hosts)} {verb}" for hosts, verb in ((went, "went"), (came, "came")) if hosts]
    return [Circumstance("hosts", f"other hosts: {' and '.join(words)}", went, came)]


def _named(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - NAMED} more" if len(hosts) > NAMED else ""
    return ", ".join(hosts[:NAMED]) + more


def _throttled(sides: Sides) -> list[Circumstance]:
    def held(sample: Sample, reason: str) -> float | None:
        return None if sample.device is None else float(sample.device.throttled.get(reason, 0))

    found = []
    for reason in sides.names(lambda sample: list(sample.device.throttled) if sample.device else []):
        level = sides.level(lambda sample, reason=reason: held(sample, reason))  # type: ignore[misc]
        if level is not None and round(level[0]) != round(level[1]):
            before, after = round(level[0]), round(level[1])
            words = f"devices throttled for {reason}: {before} -> {after} of {sides.after[-1].ranks} ranks"
            found.append(Circumstance("throttling", words, before, after))
    return found


def _clock(sides: Sides) -> list[Circumstance]:
    middle = sides.level(lambda sample: sample.device.clock if sample.device else None)
    lowest = sides.level(lambda sample: sample.device.clock_min if sample.device else None)
    for name, level, least in (("median", middle, CLOCK), ("lowest", lowest, CLOCK_MIN)):
        if level is not None and level[0] > 0 and abs(level[1] / level[0] - 1) >= least:
            verb = "fell" if level[1] < level[0] else "rose"
            words = f"the {name} clock of the devices {verb} from {level[0] / 1e6:.0f} to {level[1] / 1e6:.0f} MHz"
            return [Circumstance("clock", words, *level)]
    return []


def _temperature(sides: Sides) -> list[Circumstance]:
    level = sides.level(lambda sample: sample.device.temperature if sample.device else None)
    if level is None or abs(level[1] - level[0]) < HEAT:
        return []
    verb = "rose" if level[1] > level[0] else "fell"
    return [Circumstance("temperature", f"the hottest device {verb} from {level[0]:.0f} to {level[1]:.0f} °C", *level)]


def _cpu(sides: Sides) -> list[Circumstance]:
    before, after = sides.step()
    middle = sides.level(lambda sample: sample.waited.median if sample.waited else None)
    largest = sides.level(lambda sample: sample.waited.max if sample.waited else None)
    for who, level in (("training threads wait", middle), ("one training thread waits", largest)):
        if level is not None and (level[1] - level[0]) / (after - before) >= WAIT:
            more = "longer" if level[1] > level[0] else "less"
            words = f"{who} {more} for a CPU: {span(level[0])} -> {span(level[1])} a step"
            return [Circumstance("cpu", words, *level)]
    return []


def _slowest(sides: Sides) -> list[Circumstance]:
    before, after = slowest_rank(sides.before), slowest_rank(sides.after)
    change = abs(sides.step()[1] - sides.step()[0])
    late = usual(sides.before, lambda sample: sample.slowest[0].late if sample.slowest else None)
    if after is None or late is None or (before is not None and before.rank == after.rank):
        return []
    if after.late - late < LATE * change:
        return []
    words = f"{place(after)} became the slowest: {span(after.late)} of each step behind the median rank"
    return [Circumstance("slowest", words, before.rank if before else None, after.rank)]
