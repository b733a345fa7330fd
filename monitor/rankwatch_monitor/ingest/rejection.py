"""The two ways of saying no: a whole request is refused, or some of its items are rejected.

A :class:`Refusal` becomes the HTTP status of the request. :class:`Rejections` become OTLP's *partial success*: status
200, the number of items that were not taken, and why.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rankwatch_monitor.ingest.limits import Counters


class Refusal(Exception):  # noqa: N818 - an answer to the sender, not a fault of ours
    """A request that is not taken: its HTTP status, the reason it is counted under, and a sentence for the sender.

    ``retry_after`` (seconds) is given with the statuses after which an OTLP sender tries again (429 and 503).
    """

    def __init__(self, status: int, reason: str, words: str, *, retry_after: int | None = None) -> None:
        super().__init__(words)
        self.status = status
        self.reason = reason
        self.words = words
        self.retry_after = retry_after


class Refused(NamedTuple):
    """Why one resource cannot be understood: a reason to count and words to answer."""

    reason: str
    words: str


# A sender with a thousand wrong ranks needs to read the first few, not all.
_SENTENCES_SHOWN: Final = 5
_QUOTED: Final = 60


def quote(value: object) -> str:
    """Return ``value`` as it may stand in a message: escaped, and short whatever a sender put into it."""
    text = repr(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


class Rejections:
    """The items of one request that were not taken, counted as they come."""

    __slots__ = ("_counters", "_more", "_words", "items")

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._words: dict[str, None] = {}
        self._more = 0
        self.items = 0

    def add(self, reason: str, words: str, items: int = 1) -> None:
        """Turn ``items`` away; the same words are shown once."""
        self._counters.reject(reason, items)
        self.items += items
        self._say(words)

    def warn(self, reason: str, words: str) -> None:
        """Say and count something that did not cost the sender any item."""
        self._counters.reject(reason)
        self._say(words)

    def _say(self, words: str) -> None:
        if words in self._words:
            return
        if len(self._words) < _SENTENCES_SHOWN:
            self._words[words] = None
        else:
            self._more += 1

    def message(self) -> str:
        """Return one text for the partial success, empty when there is nothing to say."""
        text = "; ".join(self._words)
        return f"{text}; and {self._more} more" if self._more else text
