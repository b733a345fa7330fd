"""Routes for those who operate the monitor: ``/metrics`` for Prometheus, and the probes ``/livez`` and ``/readyz``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

import rankwatch
from rankwatch_monitor.http import problems
from rankwatch_monitor.publish.prometheus.exposition import CONTENT_TYPE, Own, exposition
from rankwatch_monitor.service.monitor import Monitor

STALLED: Final = 5.0
"""Seconds without a tick after which the monitor is not ready."""
DEAD: Final = 120.0
"""Seconds without a tick after which only a restart of the monitor helps; a tick of many seconds delays the next."""


def metrics_routes(routes: APIRouter, monitor: Monitor) -> None:
    """``GET /metrics``."""
    routes.tags = ["operation"]

    @routes.get("/metrics", summary="Prometheus exposition")
    async def metrics() -> Response:
        store, publishing = monitor.repository, monitor.publishing
        own = Own(
            monitor.counters.reports,
            monitor.counters.rejected,
            monitor.tick_seconds,
            monitor.tick_errors,
            store.writer.errors if store else 0,
            tick_age=max(0.0, monitor.clock.now() - monitor.last_tick),
            not_judged=len(monitor.failing),
            store_waiting=store.writer.waiting if store else 0,
            store_lost=store.writer.lost if store else 0,
            store_fenced=store.writer.fenced if store else 0,
            publish_errors=publishing.failures() if publishing else {},
            published=publishing.samples() if publishing else (),
        )
        return Response(exposition(monitor.jobs.values(), own, monitor.clock.now()), media_type=CONTENT_TYPE)


def probe_routes(routes: APIRouter, monitor: Monitor, loops: Sequence[asyncio.Task[None]]) -> None:
    """``GET /livez`` and ``GET /readyz``; ``loops`` holds the task that evaluates jobs, once it was started."""
    routes.tags = ["operation"]
    about = {"status": "alive", "rankwatch": rankwatch.__version__}

    @routes.get("/livez", summary="The loop evaluates jobs")
    async def livez() -> Response:
        found = _dead(monitor, loops)
        return problems.problem(503, found) if found else JSONResponse(about)

    @routes.get("/readyz", summary="The loop evaluates and the database accepts rows")
    async def readyz() -> Response:
        found = _dead(monitor, loops) or _not_ready(monitor)
        return problems.problem(503, found) if found else JSONResponse({"status": "ready"})


def _dead(monitor: Monitor, loops: Sequence[asyncio.Task[None]]) -> str:
    """Why no job will be evaluated again; empty while the loop lives."""
    lag = monitor.clock.now() - monitor.last_tick
    if any(loop.done() for loop in loops):
        return f"the loop that evaluates the jobs ended {lag:.0f} s ago; restart the monitor"
    return f"no job was evaluated for {lag:.0f} s; restart the monitor" if lag > DEAD else ""


def _not_ready(monitor: Monitor) -> str:
    """Why jobs are not evaluated or not stored as they should be; empty: they are."""
    lag = monitor.clock.now() - monitor.last_tick
    if lag > STALLED:
        return f"the loop has not evaluated any job for {lag:.1f} s"
    if monitor.failing_stages:
        return f"the monitor cannot {', '.join(sorted(monitor.failing_stages))}; see its log"
    if monitor.failing:
        return f"{len(monitor.failing)} jobs cannot be evaluated; see the monitor's log"
    if monitor.ownership is not None and monitor.ownership.leases.db_error:
        return "the shared database does not answer; jobs move to other monitors"
    if (store := monitor.repository) is not None and (store.writer.errors or store.db_error):
        return f"{store.db_error or 'the database refuses rows'}; detection continues in memory"
    return ""
