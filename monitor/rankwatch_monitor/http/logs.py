"""What ranks print, read on demand: the route of readers, and that of the launchers that answer."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, HTTPException, Query, Request, Response

from rankwatch.contract.rank_output import LEAST_BYTES, MOST_BYTES, MOST_RANKS, LogAnswer, LogRequest, read_cursor
from rankwatch_monitor.core.views import rank_output, responses
from rankwatch_monitor.http.auth import grant_of, reader_of, still_granted
from rankwatch_monitor.http.bodies import FirstError
from rankwatch_monitor.http.launchers import known_node
from rankwatch_monitor.http.problems import problem
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.service.monitor import Monitor

LARGEST_RANK: Final = 10**6

Ranks = Annotated[list[int] | None, Query(alias="rank", description="ranks; none: those that failed, else the first")]
OfAttempt = Annotated[int | None, Query(ge=1, lt=2**31, description="attempt; none: the newest")]
Bytes = Annotated[int, Query(ge=LEAST_BYTES, le=MOST_BYTES, description="at most, all ranks together")]
After = Annotated[
    str, Query(max_length=2_000, description="'after' of the last answer: go on there; '0': from the begin")
]
Whole = Annotated[bool, Query(description="leave out a last line that has no line break yet")]


def log_routes(routes: APIRouter, monitor: Monitor) -> None:
    """``GET /jobs/{id}/logs``."""
    routes.tags = ["jobs"]

    @routes.get(
        "/jobs/{job_id}/logs",
        summary="What ranks printed, fetched from their launchers now",
        response_model=responses.RankOutput,
    )
    async def logs(
        request: Request,
        job_id: str,
        rank: Ranks = None,
        attempt: OfAttempt = None,
        size: Bytes = MOST_BYTES,
        after: After = "",
        whole: Whole = False,
    ) -> responses.RankOutput | Response:
        job = monitor.job(job_id)
        ranks = rank or []
        if len(ranks) > MOST_RANKS or any(not 0 <= each < LARGEST_RANK for each in ranks):
            raise HTTPException(422, f"rank: at most {MOST_RANKS} ranks from 0 up")
        try:
            positions = read_cursor("" if after == "0" else after)
        except ValueError as error:
            raise HTTPException(422, f"after: {error}") from None
        of = job.attempt if attempt is None else attempt
        if of > max(1, job.attempt):
            raise HTTPException(422, f"job {job_id!r} has no attempt {of}: its newest is {job.attempt}")
        asked = rank_output.wanted(job, ranks, of)
        chosen = len({each for ranks in asked.by_node.values() for each in ranks})
        most = max(LEAST_BYTES, size // max(1, chosen))
        # From the beginning is after a log that nobody has.
        since = positions or ({"": 0} if after == "0" else {})
        host = request.client.host if request.client else ""
        try:
            answers = await monitor.log_requests.ask(
                job_id,
                asked.by_node,
                LogRequest("", of, (), most, since, whole),
                reader=reader_of(grant_of(request), host),
                now=monitor.clock.now(),
            )
        except Refusal as refusal:
            monitor.counters.reject(refusal.reason)
            return problem(refusal.status, refusal.message, {"Retry-After": str(refusal.retry_after)})
        still_granted(request)
        return rank_output.output(monitor.job(job_id), of, asked, answers, positions)


def answer_routes(routes: APIRouter, monitor: Monitor) -> None:
    """``POST /jobs/{id}/logs``."""
    routes.tags = ["launchers"]

    @routes.post("/jobs/{job_id}/logs", status_code=204, summary="Answer a question for what ranks printed")
    async def answered(job_id: str, answer: Annotated[LogAnswer, FirstError()]) -> Response:
        known_node(monitor.job(job_id), answer.node)
        monitor.log_requests.answered(job_id, answer)
        return Response(status_code=204)
