"""Ranks that are kept for long, as runs of neighbours: 0 to 16,383 take 8 bytes instead of an integer each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from rankwatch_monitor.core.ranks import Ints

MOST_RANKS: Final = 262_144
"""No job that is read has more: a run of a few characters stands for the memory of all its ranks."""
_BOUND: Final = "i"
"""Typecode of an integer of four bytes."""


class RankRuns(Sequence[int]):
    """Ranks in ascending order, without repetitions; it equals the tuple of them.

    At most 4 bytes for each rank of the job, where every second one is in it.
    """

    __slots__ = ("_bounds",)

    def __init__(self, ranks: Iterable[int] | Ints = ()) -> None:
        ordered = np.sort(np.array(ranks if isinstance(ranks, np.ndarray) else tuple(ranks), np.int32), kind="stable")
        begins = np.diff(ordered, prepend=-2) > 1
        self._bounds = np.stack([ordered[begins], ordered[np.roll(begins, -1)] + 1], axis=1).tobytes()

    @classmethod
    def parse(cls, text: str) -> RankRuns:
        """Read what :func:`ranges` wrote.

        Raises:
            ValueError: it is something else, or about more ranks than any job has.
        """
        parts = [part.partition("-") for part in text.split(",") if part]
        bounds = [bound for a, _, b in parts for bound in (int(a), int(b or a) + 1)]
        if bounds and (bounds[0] < 0 or bounds[-1] > MOST_RANKS or any(a >= b for a, b in pairwise(bounds))):
            raise ValueError(f"{text[:100]!r} are no ranks of a job")
        made = cls.__new__(cls)
        made._bounds = array(_BOUND, bounds).tobytes()
        return made

    def __repr__(self) -> str:
        return f"RankRuns.parse({ranges(self)!r})"

    def _runs(self) -> Iterator[range]:
        bounds = memoryview(self._bounds).cast(_BOUND).tolist()
        return map(range, bounds[::2], bounds[1::2])

    def __len__(self) -> int:
        return sum(map(len, self._runs()))

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._runs())

    def cover(self, ranks: Ints) -> bool:
        """Whether each of these is in it."""
        bounds = np.frombuffer(self._bounds, np.int32)  # a rank within a run has passed its beginning and not its end
        return bool((bounds.searchsorted(ranks, side="right") & 1).all())

    def __contains__(self, rank: object) -> bool:
        return any(rank in run for run in self._runs())

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...
    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        return tuple(self)[at]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.fromiter(self, dtype or np.int64)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RankRuns):
            return self._bounds == other._bounds
        return tuple(self) == other

    def __lt__(self, other: Iterable[int]) -> bool:
        return tuple(self) < tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


def ranges(ranks: Iterable[int]) -> str:
    """``0-6,8`` for the ranks 0 to 6 and 8."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in parts)
