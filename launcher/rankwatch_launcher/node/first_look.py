"""Says where the ranks of an attempt are that have called init() and done nothing since, a minute after their start.

Before the first step and outside of all sections there is no limit that the monitor could apply: loading and compiling
take as long as they take. Two looks by py-spy cost nothing; where all ranks here are at one line in both, it is named.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final

from rankwatch.contract.messages import Frame
from rankwatch.contract.packages import package_of
from rankwatch.recording.shared_slots import Reading
from rankwatch_launcher.log import logger
from rankwatch_launcher.node.attempt import Attempt
from rankwatch_launcher.stacks.capture import StackReader

SECONDS: Final = 60.0
DEADLINE: Final = 5.0
"""Seconds that one look at all ranks of the node may take."""


class FirstLook:
    """Looks at the ranks of one node, twice in each attempt, on a thread."""

    def __init__(self, stacks: StackReader, seconds: float = SECONDS) -> None:
        self._stacks, self._seconds = stacks, seconds
        self._ending = threading.Event()

    def begin(self, attempt: Attempt) -> None:
        """The ranks of an attempt were started; what was begun for another one ends."""
        self.stop()
        self._ending = ending = threading.Event()
        threading.Thread(target=self._run, args=(attempt, ending), name="rankwatch-first-look", daemon=True).start()

    def stop(self) -> None:
        """The attempt is over; does not wait."""
        self._ending.set()

    def _run(self, attempt: Attempt, ending: threading.Event) -> None:
        seen: list[Frame | None] = []
        for _ in range(2):
            if ending.wait(self._seconds / 2):
                return
            if not idle(attempt.slots.read(), len(attempt.ranks)):
                return
            targets = [attempt.target(rank) for rank in attempt.ranks if rank.code is None]
            _, stacks = self._stacks.sample(targets, DEADLINE, {target.rank: () for target in targets})
            places = {place(stack.frames) for stack in stacks}
            seen.append(places.pop() if len(places) == 1 else None)
        where = seen[0]
        if where is None or seen[1] != where or ending.is_set():
            return
        ranks = f"rank {attempt.ranks[0].rank} is" if len(attempt.ranks) == 1 else f"all {len(attempt.ranks)} ranks are"
        logger.warning("%g s without a first step: %s at %s", self._seconds, ranks, named(where))


def idle(readings: Mapping[int, Reading], ranks: int) -> bool:
    """Whether all ``ranks`` have called init(), and none has taken a step, entered a section or sent a heartbeat."""
    return 0 < ranks == len(readings) and not any(
        reading.first_iteration is not None or reading.quiet is not None or reading.beats or reading.open_sections
        for reading in readings.values()
    )


def place(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the script, else the innermost one; None: the stack could not be read."""
    own = (frame for frame in frames if not package_of(frame.file))
    return next(own, next(iter(frames), None))


def named(frame: Frame) -> str:
    """``load() (train.py:12)``."""
    name = frame.function if frame.function.startswith("<") else f"{frame.function}()"
    return f"{name} ({frame.file.rsplit('/', 1)[-1]}:{frame.line})"
