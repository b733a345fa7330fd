"""What the page colours and groups its grid of ranks by, beyond states and scores: a few bytes per rank.

These are fetched only while selected on the page; the live stream does not carry them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter

from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import job_view, responses
from rankwatch_monitor.core.views.node_view import DIMENSIONS
from rankwatch_monitor.core.views.rankings import UNKNOWN, in_bytes
from rankwatch_monitor.service.monitor import Monitor

OCTAVE: Final = 16
"""Steps of a byte per doubling of an age; 254 means 17 hours or more."""
NO_COORDINATE: Final = 0xFFFF


class Coloring(StrEnum):
    """What the grid can be coloured by."""

    HEARTBEAT_AGE = "heartbeat_age"
    TEMPERATURE = "temperature"


def grid_routes(routes: APIRouter, monitor: Monitor) -> None:
    """``GET /jobs/{id}/grid/{look}`` and ``GET /jobs/{id}/layout``."""
    routes.tags = ["jobs"]

    @routes.get("/jobs/{job_id}/grid/{look}", summary="One byte per rank to colour the grid by")
    async def grid(job_id: str, look: Coloring) -> responses.GridBytes:
        job = monitor.job(job_id)
        bytes_R = _COLORINGS[look](job, monitor.clock.now())
        return {"look": str(look), "unknown": UNKNOWN, "bytes": base64.b64encode(bytes_R.tobytes()).decode()}

    @routes.get("/jobs/{job_id}/layout", summary="The parallel layout, and the available colourings")
    async def layout(job_id: str) -> responses.Layout:
        job, now = monitor.job(job_id), monitor.clock.now()
        known = [str(look) for look, bytes_of in _COLORINGS.items() if np.any(bytes_of(job, now) != UNKNOWN)]
        return {"unknown": NO_COORDINATE, "coordinates": coordinates(job), "looks": known}


def coordinates(job: Job) -> dict[responses.Dimension, str]:
    """Little-endian 16-bit words as base64, by dimension; only dimensions that ranks have reported."""
    ranks = len(job.columns)
    shown: dict[responses.Dimension, str] = {}
    for name, column_R in zip(DIMENSIONS, job.performance.layout, strict=True):
        reported_R = np.full(ranks, -1, dtype=np.int64)
        reported_R[: len(column_R)] = column_R[:ranks]
        if np.any(reported_R >= 0):
            words_R = np.where(reported_R < 0, NO_COORDINATE, np.minimum(reported_R, NO_COORDINATE - 1)).astype("<u2")
            shown[name] = base64.b64encode(words_R.tobytes()).decode()
    return shown


def _heartbeat_ages(job: Job, now: float) -> npt.NDArray[np.uint8]:
    """``16 log2(1 + age in seconds)``: fine resolution for short ages, and long ones still fit."""
    age_R = job_view.ages_as_of(job, now) - job.columns.last_heartbeat_R
    return in_bytes(OCTAVE * np.log2(1.0 + np.maximum(0.0, age_R)))


def _temperatures(job: Job, now: float) -> npt.NDArray[np.uint8]:
    """Degrees Celsius."""
    del now
    celsius_R = np.full(len(job.columns), np.nan)
    for rank, reading in job.performance.readings.items():
        if rank < len(celsius_R) and reading.temperature is not None:
            celsius_R[rank] = reading.temperature
    return in_bytes(celsius_R)


_COLORINGS: Final[Mapping[Coloring, Callable[[Job, float], npt.NDArray[np.uint8]]]] = {
    Coloring.HEARTBEAT_AGE: _heartbeat_ages,
    Coloring.TEMPERATURE: _temperatures,
}
