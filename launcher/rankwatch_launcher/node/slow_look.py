"""Says what a slow rank does that a fast one of its node does not, when the monitor has found it.

Some looks by py-spy at both, at random moments of their steps: where the slow one is found clearly more often is named.
Without another rank on the node it is the place where the slow one is found most of the time.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from rankwatch.contract.messages import Frame
from rankwatch_launcher.log import note
from rankwatch_launcher.node.attempt import Attempt
from rankwatch_launcher.node.first_look import DEADLINE, named, place
from rankwatch_launcher.stacks.capture import StackReader

LOOKS: Final = 12
PAUSE: Final = (0.3, 0.7)
"""Seconds between two looks, drawn anew: steps have a period of their own."""
CLEARLY: Final = 0.25
"""The share of the looks by which a place of the slow rank has to exceed that of the fast one."""
ALONE: Final = 0.5
"""The same where there is no fast rank."""


class Difference(NamedTuple):
    """A place of the script, and in how many looks each rank was found there."""

    frame: Frame
    slow: int
    fast: int


class SlowLook:
    """Compares two ranks of one node, on a thread; one comparison at a time."""

    def __init__(self, stacks: StackReader, pause: tuple[float, float] = PAUSE) -> None:
        self._stacks, self._pause = stacks, pause
        self._ending = threading.Event()
        self._busy = threading.Lock()

    def begin(self, attempt: Attempt, rank: int) -> None:
        """``rank`` is slow; nothing happens if it is none of this node, or while another one is looked at."""
        if any(each.rank == rank and each.code is None for each in attempt.ranks) and self._busy.acquire(False):
            self._ending = ending = threading.Event()
            run = threading.Thread(
                target=self._run, args=(attempt, rank, ending), name="rankwatch-slow-look", daemon=True
            )
            run.start()

    def stop(self) -> None:
        """The attempt is over; does not wait."""
        self._ending.set()

    def _run(self, attempt: Attempt, rank: int, ending: threading.Event) -> None:
        try:
            other = next((each.rank for each in attempt.ranks if each.rank != rank and each.code is None), None)
            targets = [attempt.target(each) for each in attempt.ranks if each.rank in (rank, other)]
            found: dict[int, list[Frame]] = {target.rank: [] for target in targets}
            for _ in range(LOOKS):
                if ending.wait(random.uniform(*self._pause)):
                    return
                _, stacks = self._stacks.sample(targets, DEADLINE, {target.rank: () for target in targets})
                for stack in stacks:
                    if (at := place(stack.frames)) is not None:
                        found[stack.rank].append(at)
            differs = difference(found[rank], None if other is None else found[other])
            if differs is not None and not ending.is_set():
                beside = "" if other is None else f", rank {other} in {differs.fast}"
                note(f"in {differs.slow} of {LOOKS} looks rank {rank} is in {named(differs.frame)}{beside}")
        finally:
            self._busy.release()


def difference(slow: Sequence[Frame], fast: Sequence[Frame] | None) -> Difference | None:
    """Where the slow rank is more often than the fast one: a function at its most frequent line; None: nowhere."""
    ours, theirs = (Counter((each.file, each.function) for each in frames) for frames in (slow, fast or ()))
    if not ours:
        return None
    most, number = max(ours.items(), key=lambda each: each[1] - theirs[each[0]])
    if number - theirs[most] < LOOKS * (ALONE if fast is None else CLEARLY):
        return None
    lines = Counter(each for each in slow if (each.file, each.function) == most)
    return Difference(lines.most_common(1)[0][0], number, theirs[most])
