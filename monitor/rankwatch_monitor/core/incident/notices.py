"""What ranks tell of themselves that nobody sees from outside: a rejected result, a restart within the process.

How this works
--------------
A notice becomes an incident about which nothing is to be done: the rank has dealt with it, or ends, which the launchers
report. All ranks of a job may tell the same thing, so it stays open for a moment and takes them in; a rank may tell the
like at every step, so the next one of its kind is news only after a minute. There is one incident at a time: while
another one is open a notice waits, and what happens next closes the notice first.
"""

from __future__ import annotations

from typing import Final

from rankwatch.contract.enums import CulpritClass, NoticeKind, VerdictKind
from rankwatch.contract.messages import ProcessEvent
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident.incident import Incident, Notice
from rankwatch_monitor.core.job import Job

SETTLE: Final = 2.0
"""Seconds in which other ranks tell the same."""
TOGETHER: Final = 60.0
"""Seconds after an incident within which another notice of its kind is no news."""
KINDS: Final = (NoticeKind.WRONG_RESULT, NoticeKind.RESTARTED_IN_PROCESS)
"""Notices that are incidents."""


def receive(job: Job, event: ProcessEvent, at: float) -> None:
    """Take in the notice of a rank of the running attempt; one of a kind that is not known here is passed over."""
    if event.attempt != job.attempt or event.rank is None or event.notice not in KINDS:
        return
    job.make_room(event.rank)
    host = job.columns.hosts[event.rank]
    kind, sentence = VerdictKind(event.notice), _sentence(event.reason)
    job.notices.append(Notice(kind, event.rank, host, sentence, event.seconds, at, event.attempt))


def known(job: Job, notice: Notice) -> Incident | None:
    """The incident that a notice belongs to; None: it is news."""
    last = job.incidents[-1] if job.incidents else None
    if last is None or last.kind is not notice.kind or last.attempt != notice.attempt:
        return None
    return last if last.closed_at is None or notice.at - last.closed_at < TOGETHER else None


def begin(incident: Incident, notice: Notice) -> None:
    """Put down what was told."""
    incident.reason, incident.affected, incident.attempt = notice.reason, (notice.rank,), notice.attempt
    if notice.kind is VerdictKind.WRONG_RESULT:
        incident.culprits = (Culprit(notice.rank, notice.host, CulpritClass.WRONG_RESULT, notice.reason),)
    incident.action_reason = "the rank deals with it by itself"
    incident.timeline.since = notice.at - notice.seconds
    if notice.kind is VerdictKind.RESTARTED_IN_PROCESS:
        incident.timeline.restarted = notice.at
        incident.outcome = f"the training function was started anew in the same process after {notice.seconds:.1f} s"
    else:
        incident.outcome = "the rank went on or ended, as its sentence says"


def _sentence(reason: str) -> str:
    words = reason.strip() or "a rank told of something, without a word"
    return f"{words[:1].upper()}{words[1:].rstrip('. ')}."
