"""Where several monitors share a database: have the job of a request here before the request is answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request

from rankwatch_monitor.errors import HeldElsewhereError, UnknownJobError
from rankwatch_monitor.service.monitor import Monitor


def held(monitor: Monitor, *, contact: bool) -> Callable[[Request], Awaitable[None]]:
    """A dependency of routes with a ``job_id`` in their path.

    Args:
        monitor: that answers.
        contact: launchers call these routes: where they do, the job is best watched.
    """

    async def have(request: Request) -> None:
        job_id = request.path_params.get("job_id")
        if job_id is None or monitor.ownership is None:
            return
        if not await monitor.ownership.acquire(job_id, contact=contact):
            raise UnknownJobError(job_id)

    return have


def elsewhere(monitor: Monitor) -> Callable[[str], str | None]:
    """What says, for the id of a job of which a rank speaks, why that is not taken in here; None when it is."""

    def why(job_id: str) -> str | None:
        if monitor.ownership is None:
            return None
        try:
            monitor.ownership.require(job_id)
        except HeldElsewhereError as error:
            return str(error)
        return None

    return why
