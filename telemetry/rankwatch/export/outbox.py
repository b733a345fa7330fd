"""What waits to be sent: the newest batches, oldest first, never more than a fixed number."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final, Generic, TypeVar

T = TypeVar("T")

KEPT_BATCHES: Final = 60
"""A minute at the default interval: long enough for a monitor to be restarted."""

BATCHES_PER_REQUEST: Final = 10
"""After an outage, so that a fleet of ranks that comes back together does not send a request for each batch."""


class Outbox(Generic[T]):
    """A bounded queue of batches. Used by one thread."""

    def __init__(self, capacity: int = KEPT_BATCHES) -> None:
        self._capacity = capacity
        self._batches: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, batch: T) -> int:
        """Add the newest batch; return how many of the oldest had to go to make room."""
        self._batches.append(batch)
        lost = max(0, len(self._batches) - self._capacity)
        for _ in range(lost):
            self._batches.popleft()
        return lost

    def oldest(self, count: int = BATCHES_PER_REQUEST) -> Sequence[T]:
        """The batches to send next; they stay until :meth:`settle`."""
        return tuple(islice(self._batches, count))

    def settle(self, count: int) -> None:
        """Forget the ``count`` oldest: they were delivered, or refused for good."""
        for _ in range(count):
            self._batches.popleft()
