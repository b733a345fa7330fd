"""Requests of the ranks of one attempt to their launcher: files beside their slots."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rankwatch.contract import env
from rankwatch.contract.enums import NoticeKind, RankRequestKind
from rankwatch.contract.messages import RankRequest, read
from rankwatch.recording.shared_slots import Reading
from rankwatch_launcher.job.outcome import CODE_RESULT_REJECTED, CODE_RESUME_ELSEWHERE
from rankwatch_launcher.log import logger

LAST_WORDS_SECONDS: Final = 10.0
"""A notice so shortly before an exit is taken for its reason."""


class Mailbox:
    """Reads each request once, in the order in which its rank made them. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken: dict[int, tuple[int, int]] = {}
        """By local rank: the process that asks, and how many of its requests were taken."""
        self._told: dict[int, tuple[RankRequest, float]] = {}

    def take(self, readings: Mapping[int, Reading]) -> list[RankRequest]:
        """What ranks have said since the last call."""
        new = []
        for local_rank, reading in readings.items():
            pid, taken = self._taken.get(local_rank, (reading.pid, 0))
            if pid != reading.pid or reading.requests < taken:
                taken = 0  # the process, or its session, was begun anew
            for number in range(taken + 1, reading.requests + 1):
                request = self._read(local_rank, number, reading.rank)
                if request is not None:
                    new.append(request)
                    if request.action == RankRequestKind.TELL:
                        self._told[local_rank] = request, time.monotonic()
            self._taken[local_rank] = reading.pid, reading.requests
        return new

    def last_words(self, local_rank: int, code: int | None) -> str:
        """The sentence by which a rank that has ended with ``code`` has explained itself; empty: it has not."""
        request, at = self._told.get(local_rank, (None, 0.0))
        if request is None:
            return ""
        # Between these and the exit a checkpoint may be saved, which takes as long as it takes.
        verdict = request.notice == NoticeKind.WRONG_RESULT and code in (CODE_RESUME_ELSEWHERE, CODE_RESULT_REJECTED)
        last = verdict or request.notice == NoticeKind.LAST_WORDS
        return request.reason if last or time.monotonic() - at < LAST_WORDS_SECONDS else ""

    def _read(self, local_rank: int, number: int, rank: int) -> RankRequest | None:
        path = self._folder / env.request_file(local_rank, number)
        try:
            return read(RankRequest, json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            logger.warning("what rank %d says cannot be read: %s", rank, error)
            return None
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
