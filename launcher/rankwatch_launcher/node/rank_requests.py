"""Inbox for the requests of one attempt's ranks to their launcher: files beside their slots."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rankwatch.contract import env
from rankwatch.contract.enums import NoticeKind, RankRequestKind
from rankwatch.contract.messages import RankRequest, read_text
from rankwatch.launcher_requests import UNREAD
from rankwatch.recording.shared_slots import Reading
from rankwatch_launcher.log import logger
from rankwatch_launcher.outcome import CODE_RESULT_REJECTED, CODE_RESUME_ELSEWHERE

MAX_FILE: Final = 1 << 20
EXIT_REASON_SECONDS: Final = 10.0
"""A notice at most this long before an exit counts as its reason."""


class RequestInbox:
    """Reads each request once, in the order in which its rank made them. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_so_far: dict[int, tuple[int, int]] = {}
        """By local rank: the process and how many of its requests were read."""
        self._last_notice: dict[int, tuple[RankRequest, float]] = {}

    def take(self, readings: Mapping[int, Reading]) -> list[RankRequest]:
        """Requests made since the last call."""
        new = []
        for local_rank, reading in readings.items():
            pid, count = self._read_so_far.get(local_rank, (reading.pid, 0))
            if pid != reading.pid or reading.requests < count:
                count = 0  # the process, or its session, was restarted
            # A writer has no more unread than this; a count that is not one would keep this thread busy for ever.
            for number in range(max(count, reading.requests - UNREAD) + 1, reading.requests + 1):
                request = self._read(local_rank, number, reading.rank)
                if request is not None:
                    new.append(request)
                    if request.action == RankRequestKind.TELL:
                        self._last_notice[local_rank] = request, time.monotonic()
            self._read_so_far[local_rank] = reading.pid, reading.requests
        return new

    def exit_reason(self, local_rank: int, code: int | None) -> str:
        """The notice with which a rank that exited with ``code`` explained its exit; empty: none."""
        request, at = self._last_notice.get(local_rank, (None, 0.0))
        if request is None:
            return ""
        # A checkpoint may be saved between these notices and the exit, however long that takes.
        rejected = request.notice == NoticeKind.WRONG_RESULT and code in (CODE_RESUME_ELSEWHERE, CODE_RESULT_REJECTED)
        last = rejected or request.notice == NoticeKind.LAST_WORDS
        return request.reason if last or time.monotonic() - at < EXIT_REASON_SECONDS else ""

    def _read(self, local_rank: int, number: int, rank: int) -> RankRequest | None:
        path = self._folder / env.request_file(local_rank, number)
        try:
            with path.open("rb") as file:
                return read_text(RankRequest, file.read(MAX_FILE))
        except (OSError, ValueError) as error:
            logger.warning("invalid request of rank %d ignored: %s", rank, error)
            return None
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
