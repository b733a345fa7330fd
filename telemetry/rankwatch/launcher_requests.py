"""Requests of a rank to its launcher: exclude this node, stop the job, change the policy, record a notice.

Each request is a file beside the rank's slots, written in one step, and counted by a word of the slots: no socket, no
waiting, and the launcher reads it even if the rank has died meanwhile.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rankwatch.contract import env
from rankwatch.contract.files import replace_file
from rankwatch.recording.shared_slots import EXPENDABLE, REQUESTS

if TYPE_CHECKING:
    from rankwatch.contract.enums import NoticeKind
    from rankwatch.contract.ft_state import LearnedTimeouts
    from rankwatch.contract.messages import RankRequest

REASON_LENGTH: Final = 1000
"""Characters of a reason that are kept; it is shown with the restart or the stop."""
UNREAD: Final = 64
"""Requests that may wait for the launcher, which reads them several times a second."""

_log = logging.getLogger("rankwatch")


class RequestWriter:
    """Writes the requests of one session whose slots a launcher reads."""

    def __init__(self, folder: Path, rank: int, local_rank: int, words: memoryview[int]) -> None:
        self.folder = folder
        self.rank = rank
        self._local_rank = local_rank
        self._words = words
        # Reentrant, because a signal handler may make a request too.
        self._lock = threading.RLock()

    def put(self, request: RankRequest) -> None:
        """Write a request.

        Raises:
            OSError: it cannot be written, or the launcher does not read requests.
        """
        body = json.dumps(asdict(request))
        with self._lock:
            number = self._words[REQUESTS] + 1
            if self._file(number - UNREAD).exists():
                raise OSError(f"the last {UNREAD} requests have not been read")
            replace_file(self._file(number), body)
            self._words[REQUESTS] = number

    def set_expendable(self, *, expendable: bool) -> None:
        """Mark whether the other ranks would continue without this process."""
        self._words[EXPENDABLE] = int(expendable)

    def _file(self, number: int) -> Path:
        return self.folder / env.request_file(self._local_rank, number)


_writer: RequestWriter | None = None
_warned = False


def attach(writer: RequestWriter | None) -> None:
    """Write requests with ``writer`` from now on; None: ignore them. For the session only."""
    global _writer
    _writer = writer


def connected() -> bool:
    """Whether a launcher reads this rank's requests, and so can agree with others on when to stop."""
    return _writer is not None


def exclude_node(reason: str) -> bool:
    """Request a restart without this rank's node, because its device, memory or network cannot be trusted.

    Returns at once, with whether a launcher will act on it; the restart ends the rank. ``reason`` is shown with it.
    Call it in the rank itself, not in a data loader's worker.
    """
    return _request("exclude_node", reason)


def stop_job(reason: str) -> bool:
    """Request a stop of the whole job without a restart. Ranks that call ``should_stop()`` save before they end.

    Returns at once, with whether a launcher will act on it; continue training until ``should_stop()`` is true.
    """
    return _request("stop_job", reason)


def change_policy(changes: Mapping[str, Any], *, calculated: bool = False) -> bool:
    """Request a change of the job's policy, for example ``{"on_straggler": "save_and_stop"}``.

    Returns at once, with whether a launcher will act on it. Names and values are those of ``rankwatch policy``; invalid
    ones are logged. All ranks may request the same. Later changes by other means take precedence. ``calculated``: the
    limits among them were calculated, so passing one raises a suspicion, as with limits that the monitor has learned.
    """
    from rankwatch.contract.policy import Policy

    try:
        Policy().changed(changes)
    except Exception as error:  # noqa: BLE001 - boundary to training code, which may pass any value
        _log.warning("change_policy(): %s; nothing is changed", error)
        return False
    return _request("change_policy", "", policy=dict(changes), calculated=calculated)


def tell(kind: NoticeKind, reason: str, seconds: float = 0.0) -> bool:
    """Record a notice, for example that a result was rejected: it becomes an incident with ``reason``.

    Returns at once, with whether a launcher will act on it, even if this process ends right after. If it fails,
    ``reason`` is the reason of its exit. ``seconds`` is how long the noticed event took, where that is known.
    """
    return _request("tell", reason, notice=str(kind), seconds=seconds)


def set_expendable(*, expendable: bool) -> None:
    """Mark whether the other ranks would continue without this process; if so, its exit restarts nothing."""
    if (writer := _writer) is not None:
        writer.set_expendable(expendable=expendable)


def learned_timeouts() -> LearnedTimeouts | None:
    """The limits that the monitor has learned for the job so far; None: none yet, or there is no launcher.

    Reads one small local file.
    """
    writer = _writer
    if writer is None:
        return None
    from rankwatch.contract import ft_state

    try:
        return ft_state.read(json.loads((writer.folder / env.LEARNED_FILE).read_text())) or None
    except (OSError, ValueError, RecursionError):
        return None


def _request(action: str, reason: str, **content: Any) -> bool:
    global _warned
    writer = _writer
    if writer is None:
        if not _warned:
            _warned = True
            _log.warning(
                "no launcher is connected; %s() is ignored: call rankwatch.init() in this process first, and start the"
                " job with `rankwatch run`",
                action,
            )
        return False
    from rankwatch.contract.messages import RankRequest  # its dataclasses would cost every rank 4 ms at import

    try:
        text = str(reason)[:REASON_LENGTH] or "no reason given"
        writer.put(RankRequest(action, text, writer.rank, **content))
    except Exception as error:  # noqa: BLE001 - boundary to training code, which may pass any value
        _log.warning("%s() could not be passed to the launcher: %s", action, error)
        return False
    return True
