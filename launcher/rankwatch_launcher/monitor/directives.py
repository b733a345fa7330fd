"""Directives from the monitor: what arrives on the control thread is done there or handed to the agent's loop.

Captures and settings leave the ranks alone and are done at once on threads of their own. Restart, stop and save-and-
stop end the attempt, so they wait in an inbox whose ``wake`` descriptor the agent's loop watches together with its
ranks.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rankwatch.contract.enums import AckState, DirectiveKind
from rankwatch.contract.messages import Directive

ENDS_THE_ATTEMPT = (DirectiveKind.RESTART, DirectiveKind.STOP, DirectiveKind.SAVE_AND_STOP)


class Doer(Protocol):
    """What the orders need of the node."""

    @property
    def attempt(self) -> int:
        """The attempt that runs now; 0 before the first."""

    def capture(
        self, deadline: float, *, incident: str | None, directive: int | None = None, last: bool = False
    ) -> int:
        """Take and post the stacks of this node's ranks; return how many were read."""

    def apply_settings(self, settings: Mapping[str, Any]) -> None:
        """Hand settings down to the ranks."""


class Orders:
    """Receives directives on one thread; the agent's loop takes those that are its own."""

    def __init__(self, doer: Doer, ack: Callable[[Directive, AckState, str, int | None], None]) -> None:
        self._doer = doer
        self._ack = ack
        self._inbox: collections.deque[Directive] = collections.deque()
        self.wake, self._ring = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def receive(self, directive: Directive) -> None:
        """Act on a directive, or hand it to the loop."""
        if directive.kind is DirectiveKind.SETTINGS:
            self._doer.apply_settings(directive.settings)
            self.ack(directive, AckState.DONE)
        elif 0 < directive.attempt < self._doer.attempt:
            self.ack(directive, AckState.SUPERSEDED, f"attempt {self._doer.attempt} runs here")
        elif directive.kind is DirectiveKind.CAPTURE:
            threading.Thread(target=self._capture, args=(directive,), name="rankwatch-capture", daemon=True).start()
        else:
            self._inbox.append(directive)
            self.ring()

    def ring(self) -> None:
        """Wake the agent's loop: there is something to look at."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._ring, b"!")

    @property
    def stop_waits(self) -> bool:
        """Whether an order to stop has not been taken yet."""
        return any(d.kind in (DirectiveKind.STOP, DirectiveKind.SAVE_AND_STOP) for d in tuple(self._inbox))

    def take(self, attempt: int) -> Directive | None:
        """The next directive about the running attempt; those about earlier ones are answered ``superseded``."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 1024)
        while self._inbox:
            directive = self._inbox.popleft()
            if directive.kind is DirectiveKind.RESTART and directive.attempt < attempt:
                self.ack(directive, AckState.SUPERSEDED, f"attempt {attempt} runs here")
            else:
                return directive
        return None

    def pending_stop(self) -> Directive | None:
        """A stop that waits in the inbox."""
        return next((d for d in self._inbox if d.kind is not DirectiveKind.RESTART), None)

    def ack(self, directive: Directive, state: AckState, detail: str = "", max_iteration: int | None = None) -> None:
        """Answer a directive."""
        self._ack(directive, state, detail, max_iteration)

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self.wake)
        os.close(self._ring)

    def _capture(self, directive: Directive) -> None:
        read = self._doer.capture(directive.deadline, incident=directive.incident_id, directive=directive.id)
        self.ack(directive, AckState.DONE, f"{read} stacks")
