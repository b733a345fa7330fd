"""Stacks of many ranks, grouped by place ("15 ranks here, 1 there"), and their progress in process groups.

Memory is bounded by the number of different stacks, not of ranks: each different stack is kept once, with its set of
ranks. 100,000 ranks that hang in one collective take one stack and a set of numbers, and 8 bytes once they are settled.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple, overload

from rankwatch.contract.enums import ProcessState
from rankwatch.contract.messages import TRACEBACK, Collective, Frame, RankStack, read
from rankwatch.contract.packages import package_of
from rankwatch.contract.peers import waiting_call, waits_for_peers
from rankwatch_monitor.core.cause import Site
from rankwatch_monitor.core.rank_runs import RankRuns, ranges

MAX_PLACES: Final = 64
"""Different stacks kept of one incident; further ranks are kept without frames, in two groups by whether they wait."""
MAX_FRAMES: Final = 64
MAX_TEXT: Final = 300
MAX_ERRORS: Final = 64
"""Different errors kept for stacks that could not be taken."""
MAX_COLLECTIVES: Final = 64
"""Process groups kept of one rank."""
MAX_CALLS: Final = 16
"""Calls kept of one rank in one process group."""
MAX_POSITIONS: Final = 4096
POSITIONS_PER_RANK: Final = 4
"""Different positions in process groups kept of one incident, and further ones for each rank: most have peers."""
MAX_STORED_PROGRESS: Final = 1024
"""Entries of group progress stored with an incident: first those of groups whose ranks differ."""
OTHER_ERRORS: Final = "no stack; the reasons differ too much to keep them all"


class StackGroup(NamedTuple):
    """Ranks whose main threads are in the same functions. Frames are those of the lowest rank, innermost first."""

    ranks: Sequence[int]
    frames: tuple[Frame, ...]
    """Empty: the ranks are in different places beyond those that are kept."""
    process_state: str
    waits: bool
    """The ranks are in a call that waits for peers."""
    method: str = ""
    note: str = ""
    """What was truncated, of the lowest rank."""

    @property
    def label(self) -> str:
        """``rank 2`` or ``3 ranks``."""
        return f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"{len(self.ranks)} ranks"


class GroupProgress(NamedTuple):
    """Ranks with equal progress in one process group; see :class:`rankwatch.contract.messages.Collective`."""

    group: str
    operation: str
    enqueued: int
    completed: int
    ranks: Sequence[int]
    calls_from: int = 0
    calls: tuple[str, ...] = ()
    beside: bool = False
    """Another thread than the main one, whose stack is known, made the newest call."""
    unusual: bool = False
    """It follows calls in other groups than each one before."""
    size: int = 0
    """Ranks in the group; 0: unknown."""

    @property
    def waits(self) -> bool:
        """The ranks have entered a collective that is not completed."""
        return self.completed < self.enqueued


class Failure(NamedTuple):
    """Ranks whose stacks could not be taken, for the same reason."""

    ranks: Sequence[int]
    error: str
    process_state: str


def call_site(frames: Sequence[Frame]) -> Frame | None:
    """The place outside torch and Rankwatch that called the function in which the rank waits for peers, if it waits."""
    waiting = waiting_call(frames)
    if waiting is None:
        return None
    outside = frames[frames.index(waiting) + 1 :]
    # Not torch's, nor that of a wrapper or helper of Rankwatch between it and the script.
    return next((f for f in outside if package_of(f.file) not in ("rankwatch", "torch")), None)


@overload
def site_of(frame: Frame) -> Site: ...
@overload
def site_of(frame: Frame | None) -> Site | None: ...
def site_of(frame: Frame | None) -> Site | None:
    """The place of a frame, without its folder."""
    return None if frame is None else Site(frame.function, frame.file.rsplit("/", 1)[-1], frame.line)


def of_script(frame: Frame) -> bool:
    """Whether a frame is of the training script or its own modules: not of a package or native code."""
    python = frame.file.endswith((".py", ".pyx")) or frame.file.startswith("<")  # of ``python -c``, of a notebook
    return python and not package_of(frame.file)


_Key = tuple[Any, ...]


@dataclass(slots=True)
class _Place:
    """One stack that is kept, with its ranks."""

    key: _Key
    frames: tuple[Frame, ...]
    state: str
    waits: bool
    methods: set[str] = field(default_factory=set)
    note: str = ""
    shown: int = -1
    """The rank whose frames they are."""
    ranks: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Failed:
    """One reason for which stacks could not be taken, with its ranks."""

    key: _Key
    ranks: set[int] = field(default_factory=set)


_Position = tuple[str, str, int, int, int, tuple[str, ...], bool, bool, int]
"""Group, operation, enqueued, completed, number of the first call, calls, beside, unusual, size; see
:class:`GroupProgress`."""


@dataclass(slots=True)
class _Reached:
    """The ranks with equal progress in one process group."""

    position: _Position
    ranks: set[int] = field(default_factory=set)
    _progress: GroupProgress | None = None

    def join(self, rank: int) -> None:
        self.ranks.add(rank)
        self._progress = None

    def leave(self, rank: int) -> int:
        """Remove a rank; return how many are left."""
        self.ranks.discard(rank)
        self._progress = None
        return len(self.ranks)

    def copy(self) -> _Reached:
        return _Reached(self.position, set(self.ranks), self._progress)

    def progress(self) -> GroupProgress:
        """Cached, since the stacks of one node change few of thousands of groups."""
        if self._progress is None:
            group, operation, enqueued, completed, calls_from, calls, beside, unusual, size = self.position
            self._progress = GroupProgress(
                group,
                operation,
                enqueued,
                completed,
                tuple(sorted(self.ranks)),
                calls_from,
                calls,
                beside,
                unusual,
                size,
            )
        return self._progress


class _Settled(NamedTuple):
    """Stacks as they are shown: ranks as runs; the progress, up to a thousand entries that few ask for, compressed."""

    groups: list[StackGroup]
    failures: list[Failure]
    packed: bytes

    @classmethod
    def of(cls, groups: Iterable[StackGroup], failures: Iterable[Failure], fronts: list[dict[str, Any]]) -> _Settled:
        return cls(
            [group._replace(ranks=RankRuns(group.ranks)) for group in groups],
            [failure._replace(ranks=RankRuns(failure.ranks)) for failure in failures],
            zlib.compress(json.dumps(fronts).encode(), level=1),
        )

    def progress(self) -> list[GroupProgress]:
        return _in_order(map(_progress_of_json, json.loads(zlib.decompress(self.packed))))

    def ranks(self) -> Iterator[Sequence[int]]:
        """The ranks of each group and failure; each rank is in one of them."""
        return chain((group.ranks for group in self.groups), (failure.ranks for failure in self.failures))


class Stacks:
    """The stacks of one incident. A rank's newest stack replaces the one before."""

    def __init__(self) -> None:
        self.of_all: Collection[int] = ()
        """Ranks that stand in a call whose arguments name no process group, where those were read."""
        self._hold(None)

    def _hold(self, settled: _Settled | None) -> None:
        """Hold this and nothing else."""
        self._places: dict[_Key, _Place] = {}
        self._failures: dict[_Key, _Failed] = {}
        self._held: dict[int, _Place | _Failed] = {}
        self._positions: dict[int, tuple[_Position, ...]] = {}
        self._reached: dict[_Position, _Reached] = {}
        self._groups: list[StackGroup] | None = None
        self._progress: list[GroupProgress] | None = None
        self._settled = settled
        """All that is held, instead of the above, until another stack is added."""

    @classmethod
    def of(cls, stacks: Iterable[RankStack]) -> Stacks:
        """The stacks of these ranks."""
        made = cls()
        for stack in stacks:
            made.add(stack)
        return made

    def __len__(self) -> int:
        """Number of ranks, those included whose stacks could not be taken."""
        return len(self._held) if self._settled is None else sum(map(len, self._settled.ranks()))

    def __iter__(self) -> Iterator[int]:
        """Those ranks, in order."""
        return iter(sorted(self._held if self._settled is None else chain(*self._settled.ranks())))

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same of the same ranks."""
        return isinstance(other, Stacks) and self._shown() == other._shown()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Stacks of {len(self)} ranks in {len(self._places)} places>"

    def _shown(self) -> tuple[object, ...]:
        return self.groups(), self.failures(), self.group_progress()

    def add(self, stack: RankStack) -> None:
        """Add one rank's stack, truncated to what is kept."""
        if self._settled is not None:
            self._resume(self._settled)
        self._groups = self._progress = None
        self._forget(stack.rank)
        if stack.frames:
            self._add_place(stack)
        else:
            self._add_failure((stack.rank,), stack.error[:MAX_TEXT], str(stack.process_state))
        for collective in stack.collectives[:MAX_COLLECTIVES]:
            self._put_position(stack.rank, _position(collective, stack.thread))

    def groups(self) -> list[StackGroup]:
        """Ranks by place; the smallest group first, since it is the odd one."""
        if self._settled is not None:
            return self._settled.groups
        if self._groups is None:
            found = [
                StackGroup(tuple(sorted(p.ranks)), p.frames, p.state, p.waits, ", ".join(sorted(p.methods)), p.note)
                for p in self._places.values()
            ]
            self._groups = sorted(found, key=lambda g: (len(g.ranks), g.ranks))
        return self._groups

    def group_progress(self) -> list[GroupProgress]:
        """Progress of all ranks in their process groups; the furthest of each group first."""
        if self._settled is not None:
            return self._settled.progress()
        if self._progress is None:
            found = [reached.progress() for reached in self._reached.values()]
            self._progress = _in_order(found)
        return self._progress

    def failures(self) -> list[Failure]:
        """Ranks whose stacks could not be taken, and why."""
        if self._settled is not None:
            return self._settled.failures
        found = [Failure(tuple(sorted(f.ranks)), str(f.key[0]), str(f.key[1])) for f in self._failures.values()]
        return sorted(found, key=lambda f: f.ranks[0])

    def copy(self) -> Stacks:
        """What is held now, without the ability to take further stacks: to encode it on another thread."""
        made = Stacks()
        made._groups, made._progress, made._settled = self._groups, self._progress, self._settled
        made._places = {
            key: replace(place, ranks=set(place.ranks), methods=set(place.methods))
            for key, place in self._places.items()
        }
        made._failures = {key: replace(each, ranks=set(each.ranks)) for key, each in self._failures.items()}
        if made._progress is None:
            made._reached = {key: each.copy() for key, each in self._reached.items()}
        return made

    def settle(self) -> None:
        """Keep only what is stored, in a fraction of the memory; further stacks are taken, but the first slowly."""
        if self._settled is None:
            fronts = [_progress_to_json(each) for each in self._stored_progress()]
            self._hold(_Settled.of(self.groups(), self.failures(), fronts))

    @property
    def settled(self) -> bool:
        """Whether no stack was added since :meth:`settle`."""
        return self._settled is not None

    def to_json(self) -> dict[str, Any]:
        """What is stored with the incident; ranks are written as ``0-6,8``."""
        return {
            "places": [
                {
                    **g._asdict(),
                    "ranks": ranges(g.ranks),
                    "frames": [[f.function, f.file, f.line] for f in g.frames],
                }
                for g in self.groups()
            ],
            "failures": [{**f._asdict(), "ranks": ranges(f.ranks)} for f in self.failures()],
            "fronts": [_progress_to_json(each) for each in self._stored_progress()],
        }

    def _stored_progress(self) -> list[GroupProgress]:
        fronts = self.group_progress()
        differing = {f.group for f, g in pairwise(fronts) if f.group == g.group}
        return sorted(fronts, key=lambda f: (f.group not in differing, not f.waits))[:MAX_STORED_PROGRESS]

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Stacks:
        """Read :meth:`to_json`."""
        groups = [
            StackGroup(**{**g, "ranks": RankRuns.parse(g["ranks"]), "frames": tuple(Frame(*f) for f in g["frames"])})
            for g in data["places"]
        ]
        failures = [Failure(RankRuns.parse(f["ranks"]), f["error"], f["process_state"]) for f in data["failures"]]
        made = cls()
        made._hold(_Settled.of(groups, failures, data["fronts"]))
        return made

    def _resume(self, settled: _Settled) -> None:
        """Hold this in the form in which further stacks are taken."""
        self._settled = None
        for group in settled.groups:
            self._put_place(group)
        for failure in settled.failures:
            self._add_failure(failure.ranks, failure.error, failure.process_state)
        for each in settled.progress():
            position = (*each[:4], *each[5:])
            for rank in each.ranks:
                self._put_position(rank, position)

    def _forget(self, rank: int) -> None:
        held = self._held.pop(rank, None)
        for position in self._positions.pop(rank, ()):
            reached = self._reached.get(position)
            if reached is not None and not reached.leave(rank):
                del self._reached[position]
        if held is None:
            return
        held.ranks.discard(rank)
        if not held.ranks:
            where: dict[_Key, Any] = self._places if isinstance(held, _Place) else self._failures
            del where[held.key]
        elif isinstance(held, _Place) and held.shown == rank:
            held.shown = min(held.ranks)

    def _add_place(self, stack: RankStack) -> None:
        frames, note = _cut(stack)
        state, waits = str(stack.process_state), waits_for_peers(stack.frames)
        group = StackGroup((stack.rank,), frames, state, waits, stack.method[:MAX_TEXT], note)
        self._put_place(group)

    def _put_place(self, group: StackGroup) -> None:
        # A process that cannot run is kept apart from those in the same functions that can.
        odd = group.process_state if group.process_state in _CANNOT_RUN else ""
        # Lines differ between loops of one function; that of a collective's call tells two collectives apart.
        site = call_site(group.frames)
        if group.method == TRACEBACK and group.frames:  # exceptions of one function are told apart by their lines
            odd, site = TRACEBACK, group.frames[0]
        key: _Key = (tuple((f.function, f.file) for f in group.frames), odd, site and site.line)
        if key not in self._places and len(self._places) >= MAX_PLACES:
            key = (group.waits, odd)
            group = group._replace(frames=(), note=f"more than {MAX_PLACES} different stacks")
        place = self._places.setdefault(key, _Place(key, group.frames, group.process_state, group.waits))
        first = min(group.ranks)
        if place.shown < 0 or first < place.shown:
            place.frames, place.state, place.note, place.shown = group.frames, group.process_state, group.note, first
        place.methods.update(group.method.split(", "))
        place.ranks.update(group.ranks)
        for rank in group.ranks:
            self._held[rank] = place

    def _put_position(self, rank: int, position: _Position) -> None:
        if position not in self._reached and len(self._reached) >= MAX_POSITIONS + POSITIONS_PER_RANK * len(self._held):
            return
        # Ranks with equal progress share one tuple: there may be 100,000 of them in a dozen groups each.
        reached = self._reached.setdefault(position, _Reached(position))
        reached.join(rank)
        self._positions[rank] = (*self._positions.get(rank, ()), reached.position)

    def _add_failure(self, ranks: Sequence[int], error: str, state: str) -> None:
        key: _Key = (error, state)
        if key not in self._failures and len(self._failures) >= MAX_ERRORS:
            key = (OTHER_ERRORS, state)
        failed = self._failures.setdefault(key, _Failed(key))
        failed.ranks.update(ranks)
        for rank in ranks:
            self._held[rank] = failed


_CANNOT_RUN: Final = (ProcessState.STOPPED, ProcessState.UNINTERRUPTIBLE)


def _progress_to_json(progress: GroupProgress) -> dict[str, Any]:
    return {**progress._asdict(), "ranks": ranges(progress.ranks)}


def _progress_of_json(data: Mapping[str, Any]) -> GroupProgress:
    return read(GroupProgress, {**data, "ranks": RankRuns.parse(data["ranks"])}, own=True)


def _in_order(found: Iterable[GroupProgress]) -> list[GroupProgress]:
    """By group, the furthest of each first."""
    return sorted(found, key=lambda f: (f.group, -f.enqueued, -f.completed, f.operation, f.ranks))


def _position(collective: Collective, main: int) -> _Position:
    return (
        collective.group[:MAX_TEXT],
        collective.operation[:MAX_TEXT],
        int(collective.enqueued),
        int(collective.completed),
        int(collective.calls_from),
        tuple(str(call)[:MAX_TEXT] for call in collective.calls[:MAX_CALLS]),
        0 not in (main, collective.thread) and main != collective.thread,
        collective.unusual,
        len(collective.ranks),
    )


def _cut(stack: RankStack) -> tuple[tuple[Frame, ...], str]:
    """The frames that are kept of a stack, and a note if it was truncated."""
    note = stack.error[:MAX_TEXT]
    if len(stack.frames) > MAX_FRAMES:
        cut = f"cut to the inner {MAX_FRAMES} of {len(stack.frames)} frames"
        note = f"{note}; {cut}" if note else cut
    kept = tuple(
        Frame(f.function[:MAX_TEXT], f.file[-MAX_TEXT:], f.line)
        if len(f.function) > MAX_TEXT or len(f.file) > MAX_TEXT
        else f
        for f in stack.frames[:MAX_FRAMES]
    )
    return kept, note
