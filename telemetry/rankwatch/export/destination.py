"""One receiver of telemetry: is it there? Told once when that changes. Imported on the exporter's thread only."""

from __future__ import annotations

import logging
import time
from urllib.parse import urlsplit

from rankwatch.export.outbox import KEPT_BATCHES
from rankwatch.export.transport import Answer, Fate, Transport
from rankwatch.settings import Settings

_log = logging.getLogger("rankwatch")


class Destination:
    """An address that takes OTLP, at times."""

    def __init__(self, url: str, settings: Settings) -> None:
        self._transport = Transport(url, settings)
        parts = urlsplit(url)
        self._name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        # One rank of a node speaks for all of them: a monitor that is away is not news a thousand times over.
        self._level = logging.WARNING if settings.local_rank == 0 else logging.DEBUG
        self._trouble: Fate | None = None
        self._not_before = 0.0

    def send(self, body: bytes) -> Answer:
        """Send the body, unless the receiver has asked to be left alone; return what became of it."""
        if time.monotonic() < self._not_before:
            return Answer(Fate.LATER)
        answer = self._transport.post(body)
        if answer.pause:
            self._not_before = time.monotonic() + answer.pause
        self._tell(answer)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def _tell(self, answer: Answer) -> None:
        trouble = None if answer.fate is Fate.DELIVERED else answer.fate
        if trouble is self._trouble:
            return
        self._trouble = trouble
        if trouble is None:
            _log.log(self._level, "%s is back and takes telemetry again", self._name)
        elif trouble is Fate.LATER:
            _log.log(
                self._level,
                "%s does not take telemetry now (%s); training goes on, up to %d reports are kept for it",
                self._name,
                answer.words,
                KEPT_BATCHES,
            )
        else:
            _log.log(self._level, "%s refuses telemetry (%s); it is dropped and counted", self._name, answer.words)
