"""The two ways to turn telemetry away: a request is refused as a whole, or some of its items are rejected.

A :class:`Refusal` becomes the HTTP status of the response. :class:`Rejections` become OTLP's *partial success*: status
200 with the number of rejected items and the reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from rankwatch_monitor.ingest.limits import Counters, Limits


class Refusal(Exception):  # noqa: N818 - a response to the sender, not an error of the monitor
    """A refused request: HTTP status, the reason it is counted under, and a sentence for the sender.

    ``retry_after`` (seconds) accompanies the statuses after which an OTLP sender retries (429 and 503).
    """

    def __init__(self, status: int, reason: str, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


def too_many(what: str, limit_name: str, limit: int) -> Refusal:
    """A request holds more than the limits allow."""
    return Refusal(
        413,
        "too_many_points",
        f"{what} in one request are above the limit of {limit} ({limit_name}): send smaller batches",
    )


_OF_REQUEST: Final = {"data points": "points_per_request", "spans": "spans_per_request"}


class Budget:
    """The number of further points or spans that a request and each of its reports may hold.

    Raises:
        Refusal: 413, there are more.
    """

    __slots__ = ("_left", "_left_of_report", "_limits", "_what")

    def __init__(self, what: Literal["data points", "spans"], limits: Limits) -> None:
        self._what, self._limits = what, limits
        self._left: int = getattr(limits, _OF_REQUEST[what])
        self._left_of_report = limits.points_per_report

    def begin_report(self) -> None:
        """What is taken from here on is of another report."""
        self._left_of_report = self._limits.points_per_report

    def take(self, items: int) -> None:
        """Count points or spans, and what they are in."""
        self._left -= items
        self._left_of_report -= items
        if self._left < 0:
            name = _OF_REQUEST[self._what]
            raise too_many(self._what, name, getattr(self._limits, name))
        if self._left_of_report < 0:
            raise too_many(f"{self._what} of one resource", "points_per_report", self._limits.points_per_report)


Forbidden = Callable[[str], str | None]
"""Takes a job id; returns why the sender may not report on that job, None if it may."""


class Rejection(NamedTuple):
    """Why a resource, or a part of it, was rejected: the reason it is counted under, and a sentence for the sender."""

    reason: str
    message: str


# The first few of a thousand wrong ranks are enough to find the mistake.
_MESSAGES_SHOWN: Final = 5
_QUOTED: Final = 60


def quote(value: object) -> str:
    """``value`` as it may stand in a message: escaped and shortened, whatever a sender put into it."""
    text = repr(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


class Rejections:
    """The rejected items of one request; counts each as it is added."""

    __slots__ = ("_counters", "_messages", "_more", "items")

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._messages: dict[str, None] = {}
        self._more = 0
        self.items = 0

    def add(self, reason: str, message: str, items: int = 1) -> None:
        """Reject ``items``; equal messages are shown once."""
        self._counters.reject(reason, items)
        self.items += items
        self._show(message)

    def warn(self, reason: str, message: str) -> None:
        """Report and count a problem that cost the sender no item."""
        self._counters.reject(reason)
        self._show(message)

    def message(self) -> str:
        """The text of the partial success; empty when nothing was rejected."""
        text = "; ".join(self._messages)
        return f"{text}; and {self._more} more" if self._more else text

    def _show(self, message: str) -> None:
        if message in self._messages:
            return
        if len(self._messages) < _MESSAGES_SHOWN:
            self._messages[message] = None
        else:
            self._more += 1
