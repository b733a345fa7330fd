"""Notices: what ranks report of themselves that is invisible from outside, a wrong result or an in-process restart.

A notice becomes an incident without an action: the rank handles it, or ends, which its launcher reports. All ranks of a
job may report the same, so the incident stays open for :data:`SETTLE` seconds and collects them; a rank may report the
like at every step, so the next one of its kind opens an incident only after :data:`TOGETHER` seconds. While another
incident is open a notice waits; whatever else happens closes the notice's incident first.
"""

from __future__ import annotations

from typing import Final

from rankwatch.cli.formatting import capital
from rankwatch.contract.enums import NoticeKind, VerdictKind
from rankwatch.contract.messages import ProcessEvent
from rankwatch_monitor.core.incident_record import Incident, Notice
from rankwatch_monitor.core.job import Job

SETTLE: Final = 2.0
"""Seconds in which other ranks report the same."""
TOGETHER: Final = 60.0
"""Seconds after an incident within which another notice of its kind belongs to it."""
KINDS: Final = (NoticeKind.WRONG_RESULT, NoticeKind.RESTARTED_IN_PROCESS)
"""Notices that become incidents."""


def receive(job: Job, event: ProcessEvent, at: float) -> None:
    """Queue a notice of a rank of the current attempt; other kinds are ignored."""
    if event.attempt != job.attempt or event.rank is None or event.notice not in KINDS:
        return
    job.make_room(event.rank)
    columns, rank = job.columns, event.rank
    kind, sentence = VerdictKind(event.notice), _sentence(event.reason)
    place = int(columns.local_rank_R[rank]), columns.devices[rank]
    job.notices.append(Notice(kind, rank, columns.hosts[rank], sentence, event.seconds, at, event.attempt, *place))


def known(job: Job, notice: Notice) -> Incident | None:
    """The incident that a notice belongs to; None: it opens one."""
    last = job.incidents[-1] if job.incidents else None
    if last is None or last.kind is not notice.kind or last.attempt != notice.attempt:
        return None
    return last if last.closed_at is None or notice.at - last.closed_at < TOGETHER else None


def _sentence(reason: str) -> str:
    words = reason.strip() or "a rank sent a notice without a reason"
    return f"{capital(words.rstrip('. '))}."
