"""The ranks of an incident whose stacks are missing, each with the reason: a failed capture, or no answer of a host."""

from __future__ import annotations

import numpy as np

from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import live_ranks
from rankwatch_monitor.core.views import responses


def stack_errors(job: Job, incident: Incident) -> list[responses.StackError]:
    """Rank, error and state of the process of each rank without a stack, those whose capture failed first."""
    failed: list[responses.StackError] = [
        {"rank": rank, "error": failure.error, "process_state": failure.process_state}
        for failure in incident.stacks.failures()
        for rank in failure.ranks
    ]
    return failed + [{"rank": rank, "error": error, "process_state": ""} for rank, error in _unanswered(job, incident)]


def _unanswered(job: Job, incident: Incident) -> list[tuple[int, str]]:
    """Ranks of hosts from which nothing came, neither stacks nor errors, although others answered the capture."""
    captured = incident.timeline.captured is not None and incident.phase is not Phase.CAPTURING
    if not captured or incident.attempt != job.attempt:
        return []
    hosts = job.columns.hosts
    answered = {rank for group in incident.stacks.groups() for rank in group.ranks}
    answered |= {rank for failure in incident.stacks.failures() for rank in failure.ranks}
    heard = {hosts[rank] for rank in answered if rank < len(hosts)}
    if not heard:
        return []
    missing = [rank for rank in np.flatnonzero(live_ranks(job.columns)).tolist() if rank not in answered]
    return [(rank, f"{hosts[rank]} did not answer the capture") for rank in missing if hosts[rank] not in heard | {""}]
