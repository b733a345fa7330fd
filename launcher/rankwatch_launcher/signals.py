"""What a signal asks of the launcher: the first stop signal means "save and stop", everything else "end".

===============================  =====================================================================================
a signal, while                  does
===============================  =====================================================================================
stop signal, ranks run           is noted; all ranks of the job are asked to save and stop at the same step
stop signal, no rank runs        ends the launcher: there is nothing to save
stop signal, the second time     ends the ranks here with SIGTERM, and the launcher
any other that torchrun handles  the same, at once
===============================  =====================================================================================
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

from torch.distributed.elastic.multiprocessing import SignalException


class Signals:
    """The launcher's handlers. torch puts its own in place with each start of the ranks, so ours are put back then."""

    def __init__(self, names: str, stop: signal.Signals | None, wake: Callable[[], None]) -> None:
        handled = (getattr(signal, name.strip(), None) for name in names.split(","))
        self._handled = {number for number in handled if number is not None} | ({stop} if stop else set())
        self.stop = stop
        """The signal that means "save and stop"; None: there is none."""
        self._wake = wake
        self.asked: signal.Signals | None = None
        """The stop signal, once it was received."""
        self.patient = False
        """Somebody looks at ``asked``: a stop signal need not break off what is under way."""

    def install(self) -> None:
        """Put the handlers in place; call it from the main thread."""
        for number in self._handled:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == self.stop and self.asked is None and self.patient:
            self.asked = signal.Signals(number)
            self._wake()
            return
        raise SignalException(f"process {os.getpid()} got signal {number}", signal.Signals(number))
