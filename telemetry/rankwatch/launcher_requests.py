"""What a rank says to its launcher: leave this node out, stop the job, judge it otherwise, know what happened here.

Each is a file beside the rank's slots, put there in one piece, and then a word of the slots that counts them: no
socket, nobody to wait for, and it is read also when the rank has died meanwhile.
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
"""Characters of a reason that are kept: it is shown wherever the restart or the stop is."""
UNREAD: Final = 64
"""Requests that may wait for a launcher that does not read them; it looks several times a second."""

_log = logging.getLogger("rankwatch")


class Mailbox:
    """Where this rank leaves what it says; one for each session whose slots a launcher reads."""

    def __init__(self, folder: Path, rank: int, local_rank: int, words: memoryview[int]) -> None:
        self.folder = folder
        self.rank = rank
        self._local_rank = local_rank
        self._words = words
        # Reentrant, because a signal handler may ask for something too.
        self._lock = threading.RLock()

    def put(self, request: RankRequest) -> None:
        """Leave a request.

        Raises:
            OSError: it cannot be written (the launcher, whose folder this is, may be gone), or nobody reads them.
        """
        body = json.dumps(asdict(request))
        with self._lock:
            number = self._words[REQUESTS] + 1
            if self._file(number - UNREAD).exists():
                raise OSError(f"the last {UNREAD} requests have not been read")
            replace_file(self._file(number), body)
            self._words[REQUESTS] = number

    def set_expendable(self, *, expendable: bool) -> None:
        """Say whether the other ranks would go on without this process."""
        self._words[EXPENDABLE] = int(expendable)

    def _file(self, number: int) -> Path:
        return self.folder / env.request_file(self._local_rank, number)


_mailbox: Mailbox | None = None
_warned = False


def attach(mailbox: Mailbox | None) -> None:
    """Leave requests in ``mailbox`` from now on, or nowhere if None. For the session only."""
    global _mailbox
    _mailbox = mailbox


def heard() -> bool:
    """Whether a launcher hears what this rank says, and so can agree with others on when to stop."""
    return _mailbox is not None


def exclude_node(reason: str) -> bool:
    """Ask for a restart without this rank's node: its device, memory or network cannot be trusted any more.

    Returns at once, and whether a launcher will hear it; the rank is ended by the restart. ``reason`` is shown with it.
    Call it in the rank itself: a data loader's worker cannot ask.
    """
    return _say("exclude_node", reason)


def stop_job(reason: str) -> bool:
    """Ask to stop the whole job: it is not restarted. Ranks that ask ``should_stop()`` save before they end.

    Returns at once, and whether a launcher will hear it; go on training until ``should_stop()`` says so.
    """
    return _say("stop_job", reason)


def change_policy(changes: Mapping[str, Any]) -> bool:
    """Ask that the job be judged by these settings of the policy, for example ``{"on_straggler": "save_and_stop"}``.

    Returns at once, and whether a launcher will hear it. Names and values are those of ``rankwatch policy``; a mistake
    is said in the log. Every rank may ask for the same. What a person changes later stays.
    """
    from rankwatch.contract.policy import Policy

    try:
        Policy().changed(changes)
    except Exception as error:  # noqa: BLE001 - the boundary to training code, which may hand in what it likes
        _log.warning("change_policy(): %s; nothing is changed", error)
        return False
    return _say("change_policy", "", policy=dict(changes))


def tell(kind: NoticeKind, reason: str, seconds: float = 0.0) -> bool:
    """Tell the monitor what this rank has found or done: it becomes an incident with this sentence as its reason.

    Returns at once, and whether a launcher will hear it, also when this process ends right after. If it ends badly,
    the sentence is the reason of its exit. ``seconds`` says how long it took, where that means something.
    """
    return _say("tell", reason, notice=str(kind), seconds=seconds)


def set_expendable(*, expendable: bool) -> None:
    """Say whether the other ranks would go on without this process: then its launcher lets them, should it end."""
    if (mailbox := _mailbox) is not None:
        mailbox.set_expendable(expendable=expendable)


def learned_timeouts() -> LearnedTimeouts | None:
    """The limits that the monitor has learned for the whole job so far; None: none, or no launcher to tell of them.

    Reads one small local file.
    """
    mailbox = _mailbox
    if mailbox is None:
        return None
    from rankwatch.contract import ft_state

    try:
        return ft_state.read(json.loads((mailbox.folder / env.LEARNED_FILE).read_text())) or None
    except (OSError, ValueError):
        return None


def _say(action: str, reason: str, **content: Any) -> bool:
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
    from rankwatch.contract.messages import RankRequest  # its many shapes would cost every rank 4 ms at import

    try:
        words = str(reason)[:REASON_LENGTH] or "no reason was given"
        mailbox.put(RankRequest(action, words, mailbox.rank, **content))
    except Exception as error:  # noqa: BLE001 - the boundary to training code, which may hand in what it likes
        _log.warning("the launcher cannot hear %s(): %s", action, error)
        return False
    return True
