"""An ended job: how its ranks ended, and why no restart followed its failure.

The launchers report a failure with what happened (``cause``), the code of why no restart follows (``no_restart``), and
both in one sentence. All of it is derived when read, so that a job read back from its record is shown like one that
has just ended.
Shapes: R ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from rankwatch.cli.formatting import duration
from rankwatch.contract.enums import CulpritClass, JobState, RankState
from rankwatch_monitor.core.cause import Exited
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Ending, Job
from rankwatch_monitor.core.ranks import EXITED
from rankwatch_monitor.core.views import downtime, responses
from rankwatch_monitor.core.views.crash_advice import SameStep, same_step


class Repeated(NamedTuple):
    """The same rank that crashed on the same host with the same error several times, the last time as the job ended."""

    rank: int
    host: str
    times: int
    seconds: float
    """From the detection of the first of these crashes to that of the last."""
    cost: float
    """Seconds that they cost the job together."""
    lost_steps_s: float
    """Of these, seconds of the steps that the restarts threw away."""
    steps_lost: int
    """The number of these steps."""
    step: int | None
    """The last step that any rank completed before the last crash."""
    same_step: SameStep | None
    """The step after which most of these crashes came."""

    @property
    def text(self) -> str:
        """``4th crash of rank 5 on host-0 with the same error in 48 s, 3 of 4 crashes after step 614``."""
        on = f" on {self.host}" if self.host else ""
        text = f"{_ordinal(self.times)} crash of rank {self.rank}{on} with the same error in {whole(self.seconds)}"
        return text if self.same_step is None else f"{text}, {self.same_step.text}"

    def to_json(self) -> responses.Repeated:
        """For the API."""
        same_step = None if self.same_step is None else self.same_step.text
        return cast("responses.Repeated", {**self._asdict(), "same_step": same_step, "text": self.text})


def repeated(job: Job) -> Repeated | None:
    """The crash with which a job failed, if the same one came before; None: it did not, or the job has not failed."""
    if job.ended is None or job.ended.state is not JobState.FAILED:
        return None
    last = last_incident(job, job.ended)
    if last is None or len(last.culprits) != 1 or last.culprits[0].kind is not CulpritClass.DEAD:
        return None
    rank, host, cause, *_ = last.culprits[0]
    alike = [
        each for each in job.incidents if each.confirmed and any(c[:3] == (rank, host, cause) for c in each.culprits)
    ]
    if len(alike) < 2:
        return None
    cost = sum(downtime.seconds(job, each, job.ended.at) for each in alike)
    lasted = last.opened_at - alike[0].opened_at
    lost = sum(downtime.of_lost_steps(job, each) or 0.0 for each in alike)
    steps = sum(each.steps_lost or 0 for each in alike)
    same = same_step(alike, job.incidents)
    return Repeated(rank, host, len(alike), lasted, cost, lost, steps, last.furthest_iteration, same)


def rank_states(job: Job, ending: Ending, codes: Mapping[RankState, int]) -> npt.NDArray[np.uint8]:
    """The state of each rank when its job has ended; shape (R,).

    A job is finished only if all its ranks exited with code 0. Of one that failed or was stopped, the launchers end the
    ranks that still run, and do not report how: a rank that shut down may have raised, for another one that crashed.
    A rank of a stopped job that exits with 0 was asked to: it has not finished either.
    """
    columns = job.columns
    finished = ending.state is JobState.FINISHED
    codes_R = np.full(len(columns), codes[RankState.FINISHED if finished else RankState.ENDED], dtype=np.uint8)
    gone_R = columns.process_R == EXITED
    if ending.state is not JobState.STOPPED:
        codes_R[columns.exit_known_R & (columns.exit_code_R == 0)] = codes[RankState.FINISHED]
    codes_R[gone_R & (columns.exit_code_R != 0)] = codes[RankState.DEAD]
    for culprit in crashed(job, ending):
        codes_R[culprit.rank] = codes[RankState.DEAD]
    return codes_R


def crashed(job: Job, ending: Ending) -> list[Culprit]:
    """Ranks whose crash is recorded in the incident with which the job ended."""
    incident = last_incident(job, ending)
    if incident is None:
        return []
    return [c for c in incident.culprits if c.kind is CulpritClass.DEAD and c.rank < len(job.columns)]


def cause(job: Job) -> str:
    """How a job ended, without the reason why no restart followed; of a crash with rank and host."""
    assert job.ended is not None
    last = job.incidents[-1] if job.incidents else None
    if job.ended.state is JobState.STOPPED and last is not None and last.ordered and last.action_reason:
        return last.action_reason
    incident = last_incident(job, job.ended) if job.ended.state is JobState.FAILED else None
    if incident is not None and any(isinstance(culprit.cause, Exited) for culprit in incident.culprits):
        return incident.reason.rstrip(".")
    return (job.ended.cause or job.ended.reason).rstrip(".")


def no_restart(job: Job) -> str:
    """Why no restart followed a failure, as a clause; empty: it has not failed, or the launchers gave no reason."""
    return "" if job.ended is None else job.ended.why_none


def whole(seconds: float) -> str:
    """A duration without a fraction of a second."""
    return f"{seconds:.0f} s" if seconds < 99.5 else duration(seconds)


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def last_incident(job: Job, ending: Ending) -> Incident | None:
    """The confirmed incident of the job's last attempt with which it ended; None: it ended without one."""
    last = job.incidents[-1] if job.incidents else None
    if last is None or not last.confirmed or last.elective or last.attempt != job.attempt:
        return None
    return last if last.open or last.closed_at == ending.at else None
