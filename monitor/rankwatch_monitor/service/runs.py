"""Which run of a job id is watched: two launches that run at the same time must not be merged into one job.

The launcher that decides on a job's id claims it before its ranks start. A claim of another run is refused while
launchers of the earlier one are alive; that launcher then takes an id of its own, and both are warned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rankwatch.contract.intervals import LAUNCHER_HEARTBEAT_SECONDS, MAX_HEARTBEATING, POLL_SECONDS
from rankwatch.contract.messages import RunClaim
from rankwatch_monitor.core.job import Job

MISSED: Final = 3
"""Heartbeats without which a launcher counts as gone."""
MOST_CLAIMS: Final = 10_000
MOST_CONFLICTS: Final = 1_000
"""As many as there may be jobs; with more, those of :data:`WARNED_WITHIN` seconds ago are forgotten."""
WARNED_WITHIN: Final = 4 * POLL_SECONDS


@dataclass(slots=True)
class _Conflict:
    claim: RunClaim
    """Of the run that was refused the id."""
    at: float
    """Unix seconds."""
    warned: set[str] = field(default_factory=set)
    """Launchers that were warned."""


class Runs:
    """The claims on job ids, and the conflicts of which the earlier run's launchers are yet to be warned."""

    def __init__(self) -> None:
        self._claims: dict[str, tuple[RunClaim, float]] = {}
        self._conflicts: dict[str, _Conflict] = {}

    def claim(self, job_id: str, claim: RunClaim, job: Job | None, now: float) -> str:
        """Claim an id for a run; returns the run that has it, empty if the claim holds."""
        if rival := self._rival(job_id, claim.run, job, now):
            if (known := self._conflicts.get(job_id)) is None or known.claim != claim:
                if len(self._conflicts) >= MOST_CONFLICTS:  # most are of ids that never became jobs
                    kept = self._conflicts.items()
                    self._conflicts = {job: each for job, each in kept if now - each.at < WARNED_WITHIN}
                self._conflicts[job_id] = _Conflict(claim, now)
            return rival
        if (known := self._conflicts.get(job_id)) is not None and known.claim.run == claim.run:
            del self._conflicts[job_id]  # it has waited for the end of its predecessor: there is no other run
        self._forget(now)
        self._claims[job_id] = claim, now
        return ""

    def has_warning(self, job_id: str, node: str) -> bool:
        """Whether a launcher of the job is yet to be warned."""
        conflict = self._conflicts.get(job_id)
        return conflict is not None and node not in conflict.warned

    def take_warnings(self, job_id: str, node: str) -> list[str]:
        """Warnings for a launcher, once."""
        if not self.has_warning(job_id, node):
            return []
        conflict = self._conflicts[job_id]
        conflict.warned.add(node)
        where = f"{conflict.claim.host} (process {conflict.claim.launcher_pid})"
        return [
            f"another run with the id {job_id!r} of this job was started on {where}; it is watched under another "
            "id. Give each run its own --job-id"
        ]

    def forget(self, job_id: str) -> None:
        """A job was dropped."""
        self._conflicts.pop(job_id, None)

    def _rival(self, job_id: str, run: str, job: Job | None, now: float) -> str:
        claimed = self._claims.get(job_id)
        ended = job is not None and job.ended is not None
        if claimed is not None and not ended:
            other, at = claimed
            if other.run != run and now - at < MISSED * LAUNCHER_HEARTBEAT_SECONDS:
                return f"the launcher on {other.host} (process {other.launcher_pid})"
        if job is None or ended:
            return ""
        many = len(job.nodes) > MAX_HEARTBEATING
        limit = MISSED * (POLL_SECONDS if many else LAUNCHER_HEARTBEAT_SECONDS)
        for node in job.nodes.values():
            theirs = node.registration.run
            if theirs and theirs != run and node.ended is None and node.lost is None and now - node.seen < limit:
                return f"the launcher on {node.registration.host} (process {node.registration.launcher_pid})"
        return ""

    def _forget(self, now: float) -> None:
        if len(self._claims) >= MOST_CLAIMS:
            limit = MISSED * LAUNCHER_HEARTBEAT_SECONDS
            self._claims = {job: kept for job, kept in self._claims.items() if now - kept[1] < limit}
