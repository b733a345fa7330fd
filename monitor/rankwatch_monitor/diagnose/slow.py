"""Which rank the others wait for, and where it spends its time, from profiles of all ranks of a job. Pure.

Ranks of one step take equally long; they differ in how much of it they wait for their peers (the calls of
:mod:`rankwatch.contract.peers`). A rank is late if it waits less than the median of the others: by :data:`SHARE` of the
time on the whole, and by :data:`SLICE_SHARE` in every slice of it, so that a checkpoint of one rank, say, names nobody.
What it does more than its peers is the difference of the profiles, by the line of the script that was running.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final, NamedTuple

from rankwatch.contract.diagnosis import Profile, Profiled, SeenRank
from rankwatch.contract.messages import Frame
from rankwatch.contract.peers import waiting_call
from rankwatch.contract.text import one_line
from rankwatch_monitor.core.cause import Site
from rankwatch_monitor.core.hang.stacks import call_site, of_script, site_of

SHARE: Final = 0.1
SLICE_SHARE: Final = 0.05
FEWEST: Final = 30
"""Samples of a slice from which its shares are known to about 10 %."""
READY: Final = 0.2
THROTTLED: Final = 0.05
FAULTS: Final = 20.0
"""By so much more than its peers a rank lacks a CPU (a share of the time it could use one), is stopped by its quota (of
the time), or reads pages from a disk (a second)."""
ROWS: Final = 8
LEAST: Final = 0.01
"""Of the time, to be shown."""


class Spot(NamedTuple):
    """A line of the script, and whether it waits there for its peers."""

    site: Site
    waits: bool


@dataclass(frozen=True, slots=True)
class Row:
    """Where a rank is, beside its peers: shares of the time."""

    spot: Spot
    own: float
    peers: float
    """The median of theirs."""


@dataclass(frozen=True, slots=True)
class Beside:
    """A measure of one rank beside the median of the others."""

    own: float
    peers: float


@dataclass(frozen=True, slots=True)
class Late:
    """A rank that the others wait for."""

    rank: int
    waits: Beside
    """Shares of the time."""
    rows: tuple[Row, ...]
    """What it does more than its peers, the most first."""
    running: Beside | None
    ready: Beside | None
    throttled: Beside | None
    faults: Beside | None

    @property
    def lacks_cpu(self) -> bool:
        """Whether a CPU is free for it clearly less often than for its peers, when there is something to do."""
        if self.ready is None or self.running is None:
            return False
        parts = (self.ready.own, self.running.own), (self.ready.peers, self.running.peers)
        own, peers = (ready / (ready + running) if ready else 0.0 for ready, running in parts)
        return _exceeds(self.ready, SHARE) and own - peers >= READY

    @property
    def is_throttled(self) -> bool:
        """Whether a CPU quota stops it, and its peers less."""
        return _exceeds(self.throttled, THROTTLED)

    @property
    def reads_pages(self) -> bool:
        """Whether its memory comes from a disk, and that of its peers less."""
        return _exceeds(self.faults, FAULTS)


@dataclass(frozen=True, slots=True)
class Slowness:
    """What the profiles of a job show."""

    late: tuple[Late, ...]
    """The latest first."""
    waits: dict[int, float]
    """By rank: the share of the time in which it waits for its peers."""

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "late": [
                {
                    "rank": each.rank,
                    "waits": asdict(each.waits),
                    "rows": [
                        {**row.spot.site._asdict(), "waits": row.spot.waits, "own": row.own, "peers": row.peers}
                        for row in each.rows
                    ],
                    **{
                        name: None if (found := getattr(each, name)) is None else asdict(found)
                        for name in ("running", "ready", "throttled", "faults")
                    },
                }
                for each in self.late
            ],
            "waits": self.waits,
        }


def compare(ranks: Sequence[SeenRank]) -> Slowness | None:
    """Compare the profiles of a job's ranks; None: fewer than two ranks have enough samples in every slice."""
    known = {each.rank: each.profile for each in ranks if each.profile is not None and _enough(each.profile)}
    if len(known) < 2:
        return None
    spots = {rank: _spots(profile) for rank, profile in known.items()}
    waits = {rank: [_waiting(of) for of in slices] for rank, slices in spots.items()}
    whole = {rank: _waiting(_sum(slices)) for rank, slices in spots.items()}
    late = []
    for rank, shares in waits.items():
        others = [each for other, each in waits.items() if other != rank]
        peers = median(whole[other] for other in whole if other != rank)
        in_each = all(median(one[i] for one in others) - share >= SLICE_SHARE for i, share in enumerate(shares))
        if in_each and peers - whole[rank] >= SHARE:
            late.append(_late(rank, known, spots, Beside(whole[rank], peers)))
    late.sort(key=lambda each: each.waits.own - each.waits.peers)
    return Slowness(tuple(late), whole)


def folded(ranks: Sequence[SeenRank]) -> str:
    """The profiles as folded stacks, which flame graph tools read; the rank is the outermost frame."""
    counts: Counter[str] = Counter()
    for rank in ranks:
        if (profile := rank.profile) is not None:
            for each in (stack for of in profile.slices for stack in of):
                frames = reversed(_frames(profile, each))
                names = [one_line(f"{f.function} ({f.file}:{f.line})").replace(";", ":") for f in frames]
                counts[";".join([f"rank {rank.rank}", *names])] += each.samples
    return "".join(f"{stack} {number}\n" for stack, number in counts.items())


def _late(rank: int, known: dict[int, Profile], spots: dict[int, list[Counter[Spot]]], waits: Beside) -> Late:
    whole = {each: _sum(slices) for each, slices in spots.items()}
    rows = []
    for spot in whole[rank]:
        own, *peers = (whole[each][spot] / whole[each].total() for each in (rank, *(set(whole) - {rank})))
        rows.append(Row(spot, round(own, 3), round(median(peers), 3)))
    more = sorted((row for row in rows if row.own >= max(LEAST, row.peers)), key=lambda row: row.peers - row.own)

    def beside(name: str) -> Beside | None:
        measured = {each: getattr(profile, name) for each, profile in known.items()}
        own, peers = measured.pop(rank), [each for each in measured.values() if each is not None]
        return None if own is None or not peers else Beside(own, median(peers))

    measures = (beside(name) for name in ("running", "ready", "throttled", "faults"))
    return Late(rank, waits, tuple(more[:ROWS]), *measures)


def _enough(profile: Profile) -> bool:
    stacks = [sum(each.samples for each in of) for of in profile.slices]
    return bool(stacks) and min(stacks) >= FEWEST


def _frames(profile: Profile, stack: Profiled) -> list[Frame]:
    return [profile.frames[i] for i in stack.frames if 0 <= i < len(profile.frames)]


def _spots(profile: Profile) -> list[Counter[Spot]]:
    """By slice: how many samples found the rank where."""
    found: list[Counter[Spot]] = [Counter() for _ in profile.slices]
    for of, counts in zip(profile.slices, found, strict=True):
        for each in of:
            frames = _frames(profile, each)
            waits = waiting_call(frames) is not None
            own = (call_site(frames) if waits else None) or next(filter(of_script, frames), None)
            counts[Spot(site_of(own or (frames[0] if frames else Frame("?", "", 0))), waits)] += each.samples
    return found


def _waiting(counts: Counter[Spot]) -> float:
    return round(sum(number for spot, number in counts.items() if spot.waits) / max(1, counts.total()), 3)


def _sum(slices: Sequence[Counter[Spot]]) -> Counter[Spot]:
    return sum(slices, Counter())


def _exceeds(measure: Beside | None, by: float) -> bool:
    return measure is not None and measure.own - measure.peers >= by
