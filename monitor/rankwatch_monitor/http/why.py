"""Why step times changed, and the history that shows it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, HTTPException, Query
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from rankwatch.contract.enums import JobState
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.regression.explain import KnownSlow, explain
from rankwatch_monitor.core.regression.history import History
from rankwatch_monitor.core.regression.of_attempts import of_attempts
from rankwatch_monitor.core.regression.outages import with_edges
from rankwatch_monitor.core.regression.sample import NAME, OWN_PARTS, Sample, merged
from rankwatch_monitor.core.regression.trends import SHOWN, Selection, neighbours
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views import downtime, responses, verdict
from rankwatch_monitor.core.views.throttling import throttle_of
from rankwatch_monitor.core.words import slow as words
from rankwatch_monitor.service.monitor import Monitor

HOUR = 3600.0
DAY = 24 * HOUR
LATEST = 253_402_300_799.0
"""The end of the year 9999, the last that datetime supports."""

Moment = Annotated[float | None, Query(ge=0, le=LATEST, allow_inf_nan=False, description="unix seconds")]
OfAttempt = Annotated[int | None, Query(ge=0, lt=2**63, description="only of this attempt")]
Points = Annotated[int, Query(ge=1, le=SHOWN, description="at most so many; neighbouring ones are merged")]


def selected(
    since: Moment = None, until: Moment = None, attempt: OfAttempt = None, points: Points = SHOWN
) -> Selection:
    """The rows of a history that a request asks for.

    Raises:
        HTTPException: 422, the range ends before it begins.
    """
    if since is not None and until is not None and since > until:
        raise HTTPException(422, f"since ({since:.0f}) must not be later than until ({until:.0f})")
    return Selection(since, until, attempt, points)


Selected = Annotated[Selection, Depends(selected)]
CHARTED = ("at", "attempt", "iteration", "seconds", "step", "step_max", "parts", "waiting")
"""Fields of a sample that a chart of step times needs."""


def why_routes(routes: APIRouter, monitor: Monitor) -> None:
    """``GET /jobs/{id}/why`` and ``GET /jobs/{id}/history``."""
    routes.tags = ["performance"]

    @routes.get("/jobs/{job_id}/why", summary="Why the step time changed")
    async def why(job_id: str, at: Moment = None) -> responses.Why:
        job = monitor.job(job_id)
        history = job.performance.history.copy()
        now = monitor.clock.now()
        moment = (now - HOUR, now) if at is None else (at - HOUR, at + HOUR)
        happened = _happened(job, *moment, now)
        stragglers = {each.rank: _known_slow(job, each) for each in job.performance.stragglers}
        try:
            # Takes tens of milliseconds, during which ranks would wait for their response.
            explanation = await run_in_threadpool(explain, history, at, happened, stragglers)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        if at is None and history.latest is None:
            trends, outages, began = job.trends.copy(), downtime.outages(job, now), job.ledger.began
            found = await run_in_threadpool(
                lambda: of_attempts(with_edges(trends.window(now - DAY, now), outages, began))
            )
            explanation = found or explanation
        late = job.performance.late if at is None else None
        stated = None if late is None else {**plain(late), "sentence": words.late(late)}
        return cast("responses.Why", {**explanation.to_json(), "late": stated})

    @routes.get(
        "/jobs/{job_id}/history",
        summary="The history of a job's steps; the last hour by default",
        response_model=responses.History,
    )
    async def history(
        job_id: str,
        wanted: Selected,
        brief: Annotated[bool, Query(description="only step times and their parts, as for a chart")] = False,
        devices: Annotated[bool, Query(description="clocks and temperature of the devices too, if brief")] = False,
        slowest: Annotated[bool, Query(description="the slowest rank's own work too, if brief")] = False,
        bandwidths: Annotated[bool, Query(description="bandwidths of process groups too, if brief")] = False,
        section: Annotated[str | None, Query(max_length=NAME, description="this section too, if brief")] = None,
    ) -> JSONResponse:
        kept = monitor.job(job_id).performance.history.copy()
        if kept.latest is not None:
            wanted = wanted._replace(since=wanted.begin(kept.latest.at, HOUR))
        shown = (
            partial(_brief, devices=devices, slowest=slowest, bandwidths=bandwidths, section=section)
            if brief
            else _whole
        )
        samples = await run_in_threadpool(_samples, kept, wanted, shown, brief)
        return JSONResponse({"samples": samples})


def _known_slow(job: Job, straggler: Straggler) -> KnownSlow:
    found = throttle_of(job, straggler) if straggler.open else None
    known = KnownSlow(
        straggler.since,
        ended=straggler.ended,
        host=straggler.host,
        cause=str(straggler.cause),
        step_before=straggler.step_before,
    )
    if found is None:
        return known
    gpu = "GPU" if found.local_rank < 0 else found.gpu
    return known._replace(gpu=gpu, throttling=found.reasons, throttled_since=found.since)


def _happened(job: Job, since: float, until: float, now: float) -> list[str]:
    """What happened besides: incidents, and a state in which the job makes no progress now."""
    count = sum(each.opened_at <= until and (each.closed_at or now) >= since for each in job.incidents)
    found = [f"{count} incident{'s' if count > 1 else ''} in that time"] if count else []
    if since <= now <= until and (late := job.performance.late) is not None:
        found.append(words.late(late))
    state, _ = verdict.job_state(job, now)
    if since <= now <= until and state in (JobState.HUNG, JobState.LOST, JobState.FAILED, JobState.RESTARTING):
        found.append(f"the job is {state}")
    return found


def _samples(
    history: History, wanted: Selection, shown: Callable[[Sample], dict[str, Any]], charted: bool
) -> list[dict[str, Any]]:
    found = history.window(wanted.since, wanted.until)
    found = [each for each in found if wanted.attempt in (None, each.attempt)]
    rows = [merged(some) for some in neighbours(found, wanted.most)]
    latest = history.latest
    if charted and rows and latest is not None and rows[-1].at == latest.at:
        rows[-1] = latest._replace(seconds=rows[-1].seconds)  # a chart shows its end as the newest window
    return [shown(each) for each in rows]


def _brief(sample: Sample, devices: bool, slowest: bool, bandwidths: bool, section: str | None) -> dict[str, Any]:
    found = {name: getattr(sample, name) for name in CHARTED}
    if devices:
        found["device"] = sample.device._asdict() if sample.device else None
    if slowest:
        found["slowest"] = _slowest(sample)
    if bandwidths:
        found["bandwidths"] = {name: each.bandwidth for name, each in sample.collectives.items() if each.bandwidth}
    if section is not None:
        found["section"] = known._asdict() if (known := sample.sections.get(section)) else None
    return found


def _slowest(sample: Sample) -> dict[str, Any] | None:
    if not sample.slowest:
        return None
    first = sample.slowest[0]
    parts = dict(zip(OWN_PARTS, first.parts, strict=False))
    return {"rank": first.rank, "work": first.work, "late": first.late, "parts": parts}


def _whole(sample: Sample) -> dict[str, Any]:
    return {
        **plain(sample),
        "waiting": sample.waiting,
        "slowest": _slowest(sample),
        "slow_ranks": plain(sample.slowest),
    }
