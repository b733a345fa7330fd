"""What a signal to the launcher does: the first stop signal requests a graceful stop, all others end the launcher.

===============================  =====================================================================================
a signal, while                  effect
===============================  =====================================================================================
stop signal, ranks run           recorded; all ranks of the job are requested to save and stop after the same step
stop signal, no rank runs        ends the launcher: there is nothing to save
stop signal, again               within a few seconds: ignored, since schedulers and supervisors both forward it;
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

DUPLICATE_SECONDS: Final = 5.0
"""A stop signal repeated within this time is a duplicate: Slurm signals all processes, a supervisor forwards it too."""


class Signals:
    """The launcher's signal handlers, in place of torch's, which would raise in the middle of any operation."""

    def __init__(self, names: str, stop: signal.Signals | None, wake: Callable[[], None]) -> None:
        handled = (getattr(signal, name.strip(), None) for name in names.split(","))
        self._handled = {number for number in handled if number is not None} | ({stop} if stop else set())
        self.stop = stop
        """The signal that requests a graceful stop; None: disabled."""
        self._wake = wake
        self.stop_received: signal.Signals | None = None
        """The stop signal, once received."""
        self._received_at = 0.0
        self._deferred: list[int] | None = None
        self.polled = False
        """``stop_received`` is polled: a stop signal need not interrupt what is in progress."""

    def install(self) -> None:
        """Install the handlers; call it from the main thread."""
        for number in self._handled:
            signal.signal(number, self._handle)

    def ignore(self) -> None:
        """Ignore all signals from now on: the launcher only shuts down, within bounds."""
        for number in self._handled:
            signal.signal(number, signal.SIG_IGN)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Context in which signals are deferred to its end, also to one by an exception."""
        self._deferred = []
        try:
            yield
        finally:
            pending, self._deferred = self._deferred, None
            for number in pending:
                self._handle(number, None)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._deferred is not None:
            self._deferred.append(number)
            return
        if number == self.stop and self.stop_received is None and self.polled:
            self.stop_received, self._received_at = signal.Signals(number), time.monotonic()
            self._wake()
            return
        if number == self.stop_received and time.monotonic() - self._received_at < DUPLICATE_SECONDS:
            return
        raise SignalException(f"process {os.getpid()} got signal {number}", signal.Signals(number))
