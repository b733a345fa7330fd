"""Directives from the monitor: carried out at once, or queued for the agent's loop.

Captures and settings do not end the attempt: settings are applied on the link's thread, captures run on a separate one.
Restart, stop and save-and-stop are queued in an inbox whose ``wake`` descriptor the agent's loop polls with its ranks.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rankwatch.contract.enums import AckState, DirectiveKind
from rankwatch.contract.messages import Directive
from rankwatch_launcher.log import logger


class DirectiveTarget(Protocol):
    """What directives act on: the node."""

    @property
    def attempt(self) -> int:
        """The attempt that starts or runs; 0 before the first."""

    def capture(
        self, deadline: float, *, incident: str | None, directive: int | None = None, last: bool = False
    ) -> int:
        """Capture and post the stacks of this node's ranks; return how many were read."""

    def watch(self, seconds: float, incident: str | None) -> None:
        """Look at this node's ranks again and again, and post what they do."""

    def apply_settings(self, settings: Mapping[str, Any]) -> None:
        """Write settings to the ranks."""


class DirectiveInbox:
    """Receives directives on the link's thread; the agent's loop takes those that end the attempt."""

    def __init__(self, target: DirectiveTarget, ack: Callable[[Directive, AckState, str, int | None], None]) -> None:
        self._target = target
        self._ack = ack
        self._queue: collections.deque[Directive] = collections.deque()
        self._suspected: str | None = None
        """The incident that was logged."""
        self._told: tuple[str | None, bool, str] | None = None
        """What was logged of an incident that nothing is done about: the suspicion, or the hang."""
        self.wake, self._wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def receive(self, directive: Directive) -> None:
        """Carry out a directive, or queue it for the loop."""
        if directive.kind is DirectiveKind.SETTINGS:
            self._target.apply_settings(directive.settings)
            self.ack(directive, AckState.DONE)
        elif directive.kind is DirectiveKind.TELL:
            self._tell(directive)
            self.ack(directive, AckState.DONE)
        elif 0 < directive.attempt < self._target.attempt:
            self.ack(directive, AckState.SUPERSEDED, f"attempt {self._target.attempt} runs here")
        elif directive.kind is DirectiveKind.CAPTURE:
            self._log_suspicion(directive)
            threading.Thread(target=self._capture, args=(directive,), name="rankwatch-capture", daemon=True).start()
        else:
            self._queue.append(directive)
            self.wake_up()

    def _log_suspicion(self, directive: Directive) -> None:
        """Log a suspected hang once: until it is confirmed, or not, a terminal shows nothing else of it."""
        if directive.watch and directive.incident_id != self._suspected:
            self._suspected = directive.incident_id
            logger.warning(
                "a hang is suspected and looked at, nothing is stopped yet: %s ('rankwatch status' shows what follows)",
                directive.reason.rstrip(". "),
            )

    def _tell(self, directive: Directive) -> None:
        """Log what is known of a suspicion or a hang that is not acted on now, each once."""
        told = directive.incident_id, directive.suspected, directive.proof
        if told == self._told:
            return
        self._told = told
        what = "a hang is suspected" if directive.suspected else "the ranks hang"
        then = directive.follows or "nothing is stopped"
        if directive.acts_in is not None:
            at = time.strftime("%H:%M:%S", time.localtime(time.time() + directive.acts_in))
            then = f"{then}; the ranks are restarted at {at} unless they make progress"
        logger.warning("%s: %s (%s)", what, directive.reason.rstrip(". "), then)

    def wake_up(self) -> None:
        """Wake the agent's loop."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_end, b"!")

    def take(self, attempt: int) -> Directive | None:
        """The next directive for the running attempt; restarts of earlier ones are acknowledged as ``superseded``."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 1024)
        while self._queue:
            directive = self._queue.popleft()
            if directive.kind is DirectiveKind.RESTART and directive.attempt < attempt:
                self.ack(directive, AckState.SUPERSEDED, f"attempt {attempt} runs here")
            else:
                return directive
        return None

    def pending_stop(self) -> Directive | None:
        """A queued stop or save-and-stop; it stays queued."""
        return next((d for d in tuple(self._queue) if d.kind is not DirectiveKind.RESTART), None)

    def ack(self, directive: Directive, state: AckState, detail: str = "", max_iteration: int | None = None) -> None:
        """Acknowledge a directive."""
        self._ack(directive, state, detail, max_iteration)

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.wake)
        os.close(self._wake_end)

    def _capture(self, directive: Directive) -> None:
        read = self._target.capture(directive.deadline, incident=directive.incident_id, directive=directive.id)
        self.ack(directive, AckState.DONE, f"{read} stacks")
        if directive.watch:
            self._target.watch(directive.watch, directive.incident_id)
