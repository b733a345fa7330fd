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
from typing import Any, Final, Protocol

from rankwatch.contract.enums import AckState, ConsoleWord, DirectiveKind
from rankwatch.contract.messages import Directive
from rankwatch_launcher.log import event

_WORDS: Final = {
    DirectiveKind.RESTART: ConsoleWord.RESTART,
    DirectiveKind.STOP: ConsoleWord.STOP,
    DirectiveKind.SAVE_AND_STOP: ConsoleWord.SAVE,
}
"""Of directives that come without a word."""


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

    def compare(self, rank: int) -> None:
        """Show what a slow rank does that a fast one of this node does not."""

    def apply_settings(self, settings: Mapping[str, Any]) -> None:
        """Write settings to the ranks."""


class DirectiveInbox:
    """Receives directives on the link's thread; the agent's loop takes those that end the attempt."""

    def __init__(self, target: DirectiveTarget, ack: Callable[[Directive, AckState, str, int | None], None]) -> None:
        self._target = target
        self._ack = ack
        self._queue: collections.deque[Directive] = collections.deque()
        self.wake, self._wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def receive(self, directive: Directive) -> None:
        """Carry out a directive, or queue it for the loop."""
        if directive.kind is DirectiveKind.SETTINGS:
            self._target.apply_settings(directive.settings)
            self.ack(directive, AckState.DONE)
        elif directive.kind is DirectiveKind.TELL:
            self._show(directive)
            if directive.slow_rank is not None:
                self._target.compare(directive.slow_rank)
            self.ack(directive, AckState.DONE)
        elif 0 < directive.attempt < self._target.attempt:
            self.ack(directive, AckState.SUPERSEDED, f"attempt {self._target.attempt} runs here")
        elif directive.kind is DirectiveKind.CAPTURE:
            threading.Thread(target=self._capture, args=(directive,), name="rankwatch-capture", daemon=True).start()
        else:
            self._show(directive)
            self._queue.append(directive)
            self.wake_up()

    def _show(self, directive: Directive) -> None:
        """Show what the monitor has found, in its words, and what follows if nothing is done now."""
        known = directive.word in tuple(ConsoleWord)  # a newer monitor may have others
        word = ConsoleWord(directive.word) if known else _WORDS.get(directive.kind)
        if word is None:
            return
        lines = directive.headlines or (directive.reason.rstrip(". "),)
        follows: tuple[str, ...] = ()
        if directive.kind is DirectiveKind.TELL and word in (ConsoleWord.SUSPECT, ConsoleWord.HANG):
            follows = (directive.follows or "nothing is stopped",)
        if directive.acts_in is not None:
            at = time.strftime("%H:%M:%S", time.localtime(time.time() + directive.acts_in))
            follows = (*follows, f"restart at {at} unless the ranks go on")
        event(word, lines, *follows)

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

    def _capture(self, directive: Directive) -> None:
        read = self._target.capture(directive.deadline, incident=directive.incident_id, directive=directive.id)
        self.ack(directive, AckState.DONE, f"{read} stacks")
        if directive.watch:
            self._target.watch(directive.watch, directive.incident_id)
