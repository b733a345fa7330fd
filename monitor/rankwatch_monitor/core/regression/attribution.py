"""Attributes the change of a step to its contributors, so that their shares add up to the whole of it at most. Pure.

The same seconds are seen in several places: the input of one rank that takes longer is the time that the others spend
waiting for it, and that of the section in which they wait. A contributor therefore gets only what those before it have
left of its part of the step. The part that is the cause comes first, then contributors of a known part, then sections,
which hold several. One that gets nothing is another sight of the same seconds: its share is 0, and it comes last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rankwatch.contract.enums import Cause
from rankwatch_monitor.core.plain import named
from rankwatch_monitor.core.words.step_times import duration

LEAST_SHARE: Final = 0.05
"""Least share of a contributor."""


@dataclass(frozen=True, slots=True)
class PartChange:
    """Seconds of one part of the step before and after, and its share in the change of the step."""

    part: str
    before: float
    after: float
    share: float


class Contributor(NamedTuple):
    """A section, kernel, process group, waited-for rank or wait for a CPU that takes another time than before."""

    kind: str
    name: str
    before: float
    after: float
    """Seconds of a step."""
    share: float
    """In the change of the step, beyond what other contributors account for; 0: another sight of the same seconds."""
    subject: str
    """What it is in words, without figures and without its rank."""
    part: str = ""
    """The part of the step it belongs to; empty: several."""
    rank: int | None = None
    """The rank on which a section grew while it did not on all; None: the median rank."""
    waits: bool = False
    """The median rank waits in it."""
    more: str = ""
    """What else is known of it, in words."""
    stated: bool = False
    """The sentence on the change names it."""

    @property
    def key(self) -> tuple[str, str, int | None]:
        """What tells it from others."""
        return self.kind, self.name, self.rank

    @property
    def figures(self) -> str:
        """``(10 ms -> 30 ms)``."""
        return f"({duration(self.before)} -> {duration(self.after)})"

    @property
    def place(self) -> str:
        """What it is, and the rank on which alone it grew."""
        return self.subject if self.rank is None else f"{self.subject} on rank {self.rank}"

    @property
    def sentence(self) -> str:
        """All of it in words."""
        waits = " on the median rank, which waits in it" if self.waits else ""
        return f"{self.place}{waits} {self.figures}{self.more}"

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        names = ("kind", "name", "before", "after", "share", "part", "rank", "stated", "sentence")
        return {**named(self, names), "words": f"{self.place}{self.more}"}


def attributed(found: Sequence[Contributor], parts: Sequence[PartChange], cause: str) -> tuple[Contributor, ...]:
    """The contributors with shares that add up to 1 at most, those without one last.

    Args:
        found: with the share that each has by itself, the most important first.
        parts: of the step, whose shares add up to 1; empty: not measured.
        cause: the part that is to blame for most of the change.
    """
    left = {each.part: max(0.0, each.share) for each in parts} or {"": 1.0}
    whole, shown = 1.0, []
    for each in sorted(found, key=lambda c: (c.part != cause, not c.part)):
        known = each.part and each.part in left and each.part != Cause.UNEXPLAINED
        room = left[each.part] if known else sum(left.values())
        share = min(each.share, room, whole)
        if share < LEAST_SHARE:
            shown.append(each._replace(share=0.0))
            continue
        whole -= share
        shown.append(each._replace(share=share))
        for part in [each.part] if known else sorted(left, key=lambda part: -left[part]):
            taken = min(left[part], share)
            left[part] -= taken
            share -= taken
    return tuple(sorted(shown, key=lambda c: -c.share))
