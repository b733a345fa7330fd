"""What the change of a step's time consists of: its parts, and the sections, kernels and waiting behind them.

Parts are measured apart and add up to the step, so their shares add up to the change; what no part accounts for is told
as ``unexplained``. Contributors say more, and may overlap: a section holds kernels, and one section another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rankwatch.contract.enums import Cause, Part
from rankwatch.contract.semconv import DATA_SECTIONS
from rankwatch_monitor.core.regression.comparison import (
    MOSTLY,
    Contributor,
    PartChange,
    Sides,
    place,
    slowest_rank,
    span,
    usual,
)
from rankwatch_monitor.core.regression.sample import KERNELS, OWN_PARTS, Sample, SectionSample

SPOKEN: Final = 0.05
"""The least share of a contributor."""
MOST: Final = 12
"""Contributors that are told."""
ONE_RANK: Final = 0.25
"""How much more than the median rank's a section of one rank must have grown, as a share, to be told of that rank."""
FIRST: Final = 1.2
"""A section that grew on one rank goes before one that grew as much on all of them: the others may wait in that."""


def part_changes(sides: Sides) -> tuple[PartChange, ...]:
    """The parts of the step, whose shares add up to 1; empty when they were not measured on both sides."""
    step_before, step_after = sides.step()
    whole = step_after - step_before
    found = {part: sides.level(lambda sample, part=part: sample.parts.get(part)) for part in Part}  # type: ignore[misc]
    told = {part: level for part, level in found.items() if level is not None}
    if not told or whole == 0:
        return ()
    rest_before = step_before - sum(before for before, _ in told.values())
    rest_after = step_after - sum(after for _, after in told.values())
    rows = [(str(part), *level) for part, level in told.items()]
    rows.append((str(Cause.UNEXPLAINED), rest_before, rest_after))
    changes = [PartChange(part, before, after, (after - before) / whole) for part, before, after in rows]
    return tuple(sorted(changes, key=lambda change: (change.part == Cause.UNEXPLAINED, -change.share)))


def contributors(sides: Sides) -> tuple[Contributor, ...]:
    """What takes another time than before, that which explains most first."""
    before, after = sides.step()
    whole = after - before
    found = [*_sections(sides, whole), *_kernels(sides, whole), *_collectives(sides, whole)]
    found += [*_waited_for(sides, whole), *_cpu(sides, whole)]
    told = [each for each in found if each.share >= SPOKEN]
    one_rank = " on rank "
    return tuple(sorted(told, key=lambda c: -c.share * (FIRST if one_rank in c.name else 1.0))[:MOST])


def _sections(sides: Sides, whole: float) -> list[Contributor]:
    found = []
    for name in sides.names(lambda sample: list(sample.sections)):
        # A section that is not listed was not run, or is a small one.
        level = sides.level(lambda s, name=name: _taken(s.sections.get(name)) if s.sections else None)  # type: ignore[misc]
        if level is None:
            continue
        part = str(Part.DATA) if name.lower() in DATA_SECTIONS else ""
        share = (level[1] - level[0]) / whole
        found.append(_contributor("section", name, level, share, f"section '{name}'", part))
        one = _on_one_rank(sides, name, whole, share)
        if one is not None:
            found.append(one._replace(part=part))
    return found


def _taken(section: SectionSample | None) -> float:
    return section.median * section.calls if section else 0.0


def _on_one_rank(sides: Sides, name: str, whole: float, median_share: float) -> Contributor | None:
    """The section on the rank where it takes longest, when it grew there and not on all of them."""

    def largest(sample: Sample) -> float | None:
        section = sample.sections.get(name)
        return section.max * section.calls if section else None

    level = sides.level(largest)
    if level is None or (level[1] - level[0]) / whole < median_share + ONE_RANK:
        return None
    slow_side = sides.after if whole > 0 else sides.before
    weight: dict[int, float] = {}
    for sample in slow_side:
        if section := sample.sections.get(name):
            weight[section.worst] = weight.get(section.worst, 0.0) + sample.seconds
    rank = max(weight, key=lambda each: weight[each])
    if weight[rank] < MOSTLY * sum(weight.values()):
        return None
    share = (level[1] - level[0]) / whole
    return _contributor("section", f"{name} on rank {rank}", level, share, f"section '{name}' on rank {rank}", "")


def _kernels(sides: Sides, whole: float) -> list[Contributor]:
    before = [sample for sample in sides.before if sample.kernels]
    after = [sample for sample in sides.after if sample.kernels]
    # A report looks back over minutes: the first one after the change tells of both sides, if there is another.
    reports = Sides(before, after[1:] or after)
    found = []
    for name in reports.names(lambda sample: list(sample.kernels)):
        level = reports.level(lambda s, name=name: _spent(s.kernels, name))  # type: ignore[misc]
        if level is not None:
            share = (level[1] - level[0]) / whole
            found.append(_contributor("kernel", name, level, share, f"kernel {name}", str(Part.COMPUTE)))
    return found


def _spent(kernels: Mapping[str, float], name: str) -> float:
    """What a kernel took. One that is not listed in a full table took at most as much as the smallest in it."""
    unlisted = min(kernels.values()) if len(kernels) >= KERNELS else 0.0
    return kernels.get(name, unlisted)


def _collectives(sides: Sides, whole: float) -> list[Contributor]:
    found = []
    for name in sides.names(lambda sample: list(sample.collectives)):
        busy = sides.level(lambda s, name=name: c.busy if (c := s.collectives.get(name)) else None)  # type: ignore[misc]
        if busy is None:
            continue
        share = (busy[1] - busy[0]) / whole
        each = _contributor("collective", name, busy, share, f"collectives of group {name}", str(Part.COMMUNICATION))
        shortest = sides.level(lambda s, name=name: c.shortest if (c := s.collectives.get(name)) else None)  # type: ignore[misc]
        if shortest is not None and whole > 0 and shortest[1] > 1.5 * shortest[0] > 0:
            more = f"{each.sentence}; the shortest of them takes longer too ({span(shortest[0])} -> "
            more += f"{span(shortest[1])}), which speaks for the network rather than for a late rank"
            each = each._replace(sentence=more)
        found.append(each)
    return found


def _waited_for(sides: Sides, whole: float) -> list[Contributor]:
    """The rank that the others wait for, on the side on which steps take longer."""
    slow_side, quick_side = (sides.after, sides.before) if whole > 0 else (sides.before, sides.after)
    waits = sides.level(lambda sample: sample.parts.get(Part.COMMUNICATION))
    late = usual(slow_side, lambda sample: sample.slowest[0].late if sample.slowest else None)
    usual_late = usual(quick_side, lambda sample: sample.slowest[0].late if sample.slowest else None)
    if waits is None or late is None or usual_late is None:
        return []
    slow = slowest_rank(slow_side)
    late = slow.late if slow else late
    # Others can wait no longer for it than they spend in communication.
    share = min((late - usual_late) / abs(whole), (waits[1] - waits[0]) / whole)
    level = (usual_late, late) if whole > 0 else (late, usual_late)
    part = str(Part.COMMUNICATION)
    if slow is None:
        words = f"waiting for ranks that take turns in being the slowest {_from_to(level)}"
        return [Contributor("rank", "ranks that take turns", *level, share, words, part)]
    words = f"waiting for {place(slow)} {_from_to(level)}{_excess(slow.parts, slow_side)}"
    return [Contributor("rank", f"rank {slow.rank}", *level, share, words, part)]


def _excess(parts: Sequence[float], samples: Sequence[Sample]) -> str:
    """What a slow rank does longer than the median rank."""
    more = [
        (own - middle, part)
        for own, part in zip(parts, OWN_PARTS, strict=False)
        if (middle := usual(samples, lambda sample, part=part: sample.parts.get(part))) is not None  # type: ignore[misc]
    ]
    if not more or max(more)[0] <= 0:
        return ""
    excess, part = max(more)
    return f", whose {part} takes {span(excess)} longer than the others'"


def _cpu(sides: Sides, whole: float) -> list[Contributor]:
    level = sides.level(lambda sample: sample.waited.median if sample.waited else None)
    if level is None:
        return []
    share = (level[1] - level[0]) / whole
    words = "waiting for a CPU, in the training thread"
    return [_contributor("cpu", "cpu wait", level, share, words, str(Part.HOST))]


def _contributor(
    kind: str, name: str, level: tuple[float, float], share: float, subject: str, part: str
) -> Contributor:
    return Contributor(kind, name, *level, share, f"{subject} {_from_to(level)}", part)


def _from_to(level: tuple[float, float]) -> str:
    return f"({span(level[0])} -> {span(level[1])})"
