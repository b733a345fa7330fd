"""What a rank asks of its launcher about the whole job, acted on at once: leave this node out, or stop.

A request is a file beside the rank's slots, put there in one piece, and then a word of the slots that counts requests:
no socket, nobody to wait for. A second request before the launcher has looked replaces the first.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rankwatch.slots import REQUESTS
from rankwatch.wire import environment

EXCLUDE_NODE: Final = "exclude_node"
STOP_JOB: Final = "stop_job"

REASON_LENGTH: Final = 1000
"""Characters of a reason that are kept: it is shown wherever the restart or the stop is."""

_log = logging.getLogger("rankwatch")


class Mailbox:
    """Where this rank leaves its requests; one for each session whose slots a launcher reads."""

    def __init__(self, folder: Path, rank: int, local_rank: int, words: memoryview[int]) -> None:
        self._file = folder / environment.request_file(local_rank)
        self._rank = rank
        self._words = words
        # Reentrant, because a signal handler may ask for something too.
        self._lock = threading.RLock()

    def put(self, action: str, reason: str) -> None:
        """Leave a request.

        Raises:
            OSError: it cannot be written; the launcher, whose folder this is, may be gone.
        """
        from rankwatch.wire.control import RankRequest  # its many shapes would cost every rank 4 ms at import

        unfinished = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        with self._lock:
            try:
                unfinished.write_text(json.dumps(asdict(RankRequest(action, reason, self._rank))))
                unfinished.replace(self._file)
            finally:
                with contextlib.suppress(OSError):
                    unfinished.unlink()
            self._words[REQUESTS] += 1


_mailbox: Mailbox | None = None
_warned = False


def attach(mailbox: Mailbox | None) -> None:
    """Leave requests in ``mailbox`` from now on, or nowhere if None. For the session only."""
    global _mailbox
    _mailbox = mailbox


def exclude_node(reason: str) -> bool:
    """Ask for a restart without this rank's node: its device, memory or network cannot be trusted any more.

    Returns at once, and whether a launcher will hear it; the rank is ended by the restart. ``reason`` is shown with it.
    Call it in the rank itself: a data loader's worker cannot ask.
    """
    return _ask(EXCLUDE_NODE, reason)


def stop_job(reason: str) -> bool:
    """Ask to stop the whole job: it is not restarted. Ranks that ask ``should_stop()`` save before they end.

    Returns at once, and whether a launcher will hear it; go on training until ``should_stop()`` says so.
    """
    return _ask(STOP_JOB, reason)


def _ask(action: str, reason: str) -> bool:
    global _warned
    mailbox = _mailbox
    if mailbox is None:
        if not _warned:
            _warned = True
            _log.warning(
                "nobody hears %s(): rankwatch.init() has not been called in this process, or no launcher of Rankwatch"
                " runs it; start the job with `rankwatch run` to have it acted on",
                action,
            )
        return False
    try:
        mailbox.put(action, str(reason)[:REASON_LENGTH] or "no reason was given")
    except Exception as error:  # noqa: BLE001 - the boundary to training code, which may hand in what it likes
        _log.warning("the launcher cannot hear %s(): %s", action, error)
        return False
    return True
