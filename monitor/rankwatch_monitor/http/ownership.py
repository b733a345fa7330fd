"""Where several monitors share a database: acquires the job of a request before the request is handled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request

from rankwatch.contract import job_id as job_ids
from rankwatch_monitor.errors import HeldElsewhereError, TooManyError, UnknownJobError
from rankwatch_monitor.http.auth import grant_of
from rankwatch_monitor.http.launchers import check_id
from rankwatch_monitor.service.monitor import Monitor


def acquired(monitor: Monitor, *, contact: bool) -> Callable[[Request], Awaitable[None]]:
    """A FastAPI dependency of routes with a ``job_id`` in their path.

    Args:
        monitor: that handles the request.
        contact: whether launchers use the routes; the monitor that they reach should own the job.
    """

    async def acquire(request: Request) -> None:
        job_id = request.path_params.get("job_id")
        if job_id is None or monitor.ownership is None:
            return
        # In particular what no database stores: asking for its lease would fail with those of other jobs.
        if job_ids.problem(job_id) is not None:
            if contact:
                check_id(job_id)
            raise UnknownJobError(job_id)
        if contact and (reason := monitor.refuses_job(job_id, grant_of(request).bound)):
            raise TooManyError(reason)
        if not await monitor.ownership.acquire(job_id, contact=contact):
            raise UnknownJobError(job_id)

    return acquire


def elsewhere(monitor: Monitor) -> Callable[[str], str | None]:
    """A function that takes a job id and returns why its reports belong to another monitor; None if they do not."""

    def why(job_id: str) -> str | None:
        if monitor.ownership is None:
            return None
        try:
            monitor.ownership.require(job_id)
        except HeldElsewhereError as error:
            return str(error)
        return None

    return why
