"""What launchers say of their nodes and ranks: looked through, then handed to the loop. Which way it came is not known.

The ordinary way is ``directives``; where thousands of launchers speak at once the short one is ``launcher_lane``.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import HTTPException
from pydantic import BaseModel, Field

from rankwatch.contract import semconv
from rankwatch.contract.messages import Evidence, NodeObservation, ProcessEvent
from rankwatch_monitor.core.job import Job, Node
from rankwatch_monitor.http.validation import check
from rankwatch_monitor.service.monitor import Monitor
from rankwatch_monitor.service.quotas import ranks_told


class ProcessEvents(BaseModel):
    """A batch of process events, in the order in which they happened."""

    events: list[ProcessEvent] = Field(max_length=10_000)


class LauncherWords:
    """Takes them in. Nothing is taken of what cannot be: each method raises before it acts.

    Raises:
        HTTPException: 404, nobody knows the launcher; 422, something cannot be.
        UnknownJobError: there is no such job.
        HeldElsewhereError: another monitor watches it.
        TooManyRanksError: it would have more ranks than the monitor has room for.
    """

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self._top_rank = monitor.limits.ranks_per_job
        self._longest = monitor.limits.name_length

    def events(self, job_id: str, batch: ProcessEvents) -> None:
        """Processes were started, have exited, are restarted."""
        job = self.monitor.job(job_id)
        _check_ranks([e.rank for e in batch.events if e.rank is not None], self._top_rank)
        for event in batch.events:
            known_node(job, event.node)
            check(event, "the event", self._longest)
            _check_world(event, self._top_rank)
        self.monitor.make_room(job_id, max(map(ranks_told, batch.events), default=0))
        for event in batch.events:
            self.monitor.submit(job_id, event)

    def observation(self, job_id: str, said: NodeObservation) -> None:
        """A launcher shows that it lives, and speaks for ranks."""
        job = self.monitor.job(job_id)
        _check_ranks([seen.rank for seen in said.ranks], job.world_size or self._top_rank)
        check(said, "the observation", self._longest)
        named = set(job.columns.sections).union(
            *(seen.open_sections for seen in said.ranks), *(seen.first_time for seen in said.ranks)
        )
        most = self.monitor.limits.sections_per_job
        if len(named) > most:
            raise HTTPException(422, f"more sections than the limit of {most} a job")
        known_node(job, said.node)
        self.monitor.submit(job_id, said)

    def evidence(self, job_id: str, captured: Evidence) -> None:
        """The stacks of a node's ranks, of which the core keeps what it has room for."""
        job = self.monitor.job(job_id)
        _check_ranks([stack.rank for stack in captured.stacks], self._top_rank)
        known_node(job, captured.node)
        self.monitor.submit(job_id, captured)


def known_node(job: Job, name: str) -> Node:
    """The launcher of this name.

    Raises:
        HTTPException: 404, there is none.
    """
    try:
        return job.nodes[name]
    except KeyError:
        raise HTTPException(
            404,
            f"job {job.id!r} knows no launcher {name[:200]!r}: "
            f"register it first with POST {semconv.API_PREFIX}/jobs/{job.id}/nodes",
        ) from None


def _check_world(event: ProcessEvent, limit: int) -> None:
    if event.world_size is not None and event.world_size > limit:
        raise HTTPException(422, f"world_size {event.world_size} is above the limit of {limit} ranks a job")
    if event.rank is not None and event.world_size and event.rank >= event.world_size:
        raise HTTPException(422, f"rank {event.rank} is outside its world of {event.world_size}")


def _check_ranks(ranks: Sequence[int], limit: int) -> None:
    wrong = next((rank for rank in ranks if not 0 <= rank < limit), None)
    if wrong is not None:
        raise HTTPException(422, f"rank {wrong} is outside the world, whose ranks are 0 to {limit - 1}")
