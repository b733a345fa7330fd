"""The monitor's clock, of which there is one: the loop's."""

from __future__ import annotations

import time


class Clock:
    """Unix seconds that never go back: the wall clock at the start, then the monotonic one."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Unix seconds."""
        return time.monotonic() + self._offset
