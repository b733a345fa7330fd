"""What a signal asks of the launcher: the first stop signal means "save and stop", everything else "end".

===============================  =====================================================================================
a signal, while                  does
===============================  =====================================================================================
stop signal, ranks run           is noted; all ranks of the job are asked to save and stop at the same step
stop signal, no rank runs        ends the launcher: there is nothing to save
stop signal, again               within a few seconds: nothing, since schedulers and supervisors both pass it on;
                                 later: ends the ranks here with SIGTERM, and the launcher
any other that torchrun handles  the same, at once
===============================  =====================================================================================
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

from torch.distributed.elastic.multiprocessing import SignalException

ECHO_SECONDS: Final = 5.0
"""Within which a stop signal is the same one once more: Slurm signals all processes, a supervisor hands it on too."""


class Signals:
    """The launcher's handlers. torch's own would raise in the middle of whatever is under way."""

    def __init__(self, names: str, stop: signal.Signals | None, wake: Callable[[], None]) -> None:
        handled = (getattr(signal, name.strip(), None) for name in names.split(","))
        self._handled = {number for number in handled if number is not None} | ({stop} if stop else set())
        self.stop = stop
        """The signal that means "save and stop"; None: there is none."""
        self._wake = wake
        self.asked: signal.Signals | None = None
        """The stop signal, once it was received."""
        self._asked_at = 0.0
        self._held: list[int] | None = None
        self.patient = False
        """Somebody looks at ``asked``: a stop signal need not break off what is under way."""

    def install(self) -> None:
        """Put the handlers in place; call it from the main thread."""
        for number in self._handled:
            signal.signal(number, self._handle)

    def ignore(self) -> None:
        """From now on the launcher only ends, within bounds, and no signal may break that off."""
        for number in self._handled:
            signal.signal(number, signal.SIG_IGN)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While this holds, signals are kept for later: what is done must not be left half done."""
        self._held = []
        try:
            yield
        finally:
            kept, self._held = self._held, None
        for number in kept:
            self._handle(number, None)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._held is not None:
            self._held.append(number)
            return
        if number == self.stop and self.asked is None and self.patient:
            self.asked, self._asked_at = signal.Signals(number), time.monotonic()
            self._wake()
            return
        if number == self.asked and time.monotonic() - self._asked_at < ECHO_SECONDS:
            return
        raise SignalException(f"process {os.getpid()} got signal {number}", signal.Signals(number))
