"""What is put down about a straggler as of one window: how late, with what, where, and in which words.

Shapes: R ranks, S sections.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from rankwatch.contract.enums import Cause, ScoreReference
from rankwatch.contract.semconv import DATA_SECTIONS
from rankwatch_monitor.core.ranks import Bools
from rankwatch_monitor.core.straggler import lateness
from rankwatch_monitor.core.straggler.describe import Seen, below_words, kernel_words, sentence
from rankwatch_monitor.core.straggler.scores import Straggler
from rankwatch_monitor.core.straggler.signals import Window
from rankwatch_monitor.core.straggler.state import Performance

if TYPE_CHECKING:
    from rankwatch_monitor.core.job import Job

SAY_AGAIN: Final = 1.5
"""The sentence of a straggler is made anew when its share has changed by more than this factor."""


def hosts_of(job: Job, slow_R: Bools) -> Counter[str]:
    """How many slow ranks each host has."""
    hosts = job.columns.hosts
    return Counter(host for rank in np.flatnonzero(slow_R) if (host := hosts[rank]))


def describe(job: Job, window: Window, straggler: Straggler, slow_of_host: Counter[str]) -> None:
    """Put down how late a straggler is, with what and why, as of this window."""
    performance, rank, late = job.performance, straggler.rank, window.late
    scores = performance.told.scores
    assert scores is not None
    section = _section_of(performance, window, rank)
    step = float(late.step_R[rank])
    if np.isnan(step):
        step = float(window.step_R[rank])
    share = float(window.signal_R[rank])
    seconds, own, usual = share * step, None, None
    if not np.isnan(late.late_R[rank]):
        excess_P = late.excess_RP[rank]
        straggler.cause = lateness.cause_of(excess_P, seconds)
        if straggler.cause is not Cause.UNEXPLAINED:
            part = lateness.CAUSES.index(straggler.cause)
            own = float(performance.parts_RP[rank, part])
            usual = own - float(excess_P[part])
    elif section is not None:
        s = performance.sections.names.index(section)
        own = float(window.section_RS[rank, s])
        usual = own - float(window.section_excess_RS[rank, s])
        straggler.cause = Cause.DATA if section in DATA_SECTIONS else Cause.UNEXPLAINED
    elif not np.isnan(scores.gpu_robust_R[rank]) or straggler.reference is ScoreReference.FASTEST:
        straggler.cause = Cause.COMPUTE
    fastest = straggler.reference is ScoreReference.FASTEST
    score_R = scores.gpu_relative_R if fastest else scores.gpu_robust_R
    straggler.score = None if np.isnan(score_R[rank]) else float(score_R[rank])
    known = not np.isnan(seconds)
    waited_for = known and seconds > 0  # by the fastest reference also who waits for others may be called slow
    straggler.lateness, straggler.share = (seconds, share) if waited_for else (None, None)
    if fastest:
        straggler.reason = below_words(job.policy, scores, rank, straggler.host)
        return
    if not known:
        straggler.reason = kernel_words(rank, straggler.host, straggler.score or 0.0)
        return
    host = straggler.host
    straggler.reason = sentence(
        Seen(
            rank=rank,
            host=host,
            others=int(window.fresh_R.sum()) - 1,
            late=seconds,
            step=step,
            cause=straggler.cause,
            own=own,
            peers=usual,
            section=section,
            cpu_waited=_known(performance.cpu_waited_R[rank]),
            device=performance.readings.get(rank),
            hosts_ranks=max(0, slow_of_host[host] - 1),
        )
    )


def _section_of(performance: Performance, window: Window, rank: int) -> str | None:
    """The section that holds more than half of a rank's excess, where one does."""
    excess_S, names = window.section_excess_RS[rank], performance.sections.names
    if not len(names) or np.isnan(excess_S).all():
        return None
    most = int(np.nanargmax(excess_S))
    late = window.late.late_R[rank]
    return names[most] if np.isnan(late) or excess_S[most] > lateness.EXPLAINS * late else None


def changed_much(before: float | None, now: float | None) -> bool:
    """Whether a share has changed so much that it is said anew."""
    if not before or not now or before <= 0 or now <= 0:
        return False
    return max(now / before, before / now) > SAY_AGAIN


def _known(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)
