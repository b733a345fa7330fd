"""The report of the scores in the monitor's log, once a report interval of each job, as its policy wants it."""

from __future__ import annotations

import logging

from rankwatch_monitor.core.job import Job
from rankwatch_monitor.publish.text.scores_report import scores_log

log = logging.getLogger("rankwatch")


class ScoreLog:
    """When each job was last reported on."""

    def __init__(self) -> None:
        self._reported_at: dict[str, float] = {}

    def look(self, job: Job, now: float) -> None:
        """Report on a job that has scores, if it is time."""
        if job.performance.told.scores is None:
            return
        if now - self._reported_at.setdefault(job.id, now) >= job.policy.report_interval:
            self._reported_at[job.id] = now
            if text := scores_log(job, now):
                log.info("job %s:\n%s", job.id, text)

    def forget(self, job_id: str) -> None:
        """Let a job go."""
        self._reported_at.pop(job_id, None)
