"""Whatever is read of a job at whichever moment, and however often, leaves it as it was: a read is no evaluation."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from fastapi.routing import iter_route_contexts
from starlette.testclient import TestClient

from monitor.core.scene import Scene
from monitor.core.test_stall import move, retrying
from rankwatch_monitor.app import create_app
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.service import log_requests
from rankwatch_monitor.service.monitor import Monitor
from web.scene_monitor import StagedClock

ENDLESS = ("/api/v1/jobs/{job_id}/events", "/api/v1/events", "/api/v1/jobs/{job_id}/directives")
"""Streams and long polls."""
CACHES = ("_groups", "_progress")
"""Derived from the other fields of their object, when first read."""
NOT_OF_JOBS = ("/api/v1/session", "/api/v1/tokens", "/api/v1/audit", "/manual", "/assets", "/docs", "/openapi.json")


def held_by_a_section() -> Scene:
    """A stalled job of which one rank has come to stand within a section since the last evaluation."""
    scene = move(retrying(learned_minimum=60.0), 50)
    scene.job.pace.seen_at += 100
    scene.job.columns.sections_updated_R[:] = scene.now + 15
    scene.now += 15
    return scene


MOMENTS: dict[str, Callable[[], Scene]] = {
    "healthy": lambda: Scene(reports_durations=True).run(40),
    "starting": lambda: Scene().run(0),
    "suspected": lambda: Scene(reports_durations=True).run(40).hang(1).until_found(),
    "hung": lambda: Scene(section_timeouts={"step": 5.0}).run(20).hang(1).until_found(),
    "stalled": lambda: move(retrying(), 70),
    "stalled, and now within a section": held_by_a_section,
    "a quiet host": lambda: Scene(hosts=2, silence_timeout=20.0).run(20).cut_host(1).run(15),
    "crashed": lambda: Scene().run(20).die(1, exit_code=1).run(1),
    "restarted": lambda: Scene(section_timeouts={"step": 5.0}).run(20).hang(1).run(30),
}


def fields_of(each: Any) -> Iterable[tuple[str, Any]]:
    if dataclasses.is_dataclass(each):
        return [(field.name, getattr(each, field.name)) for field in dataclasses.fields(each)]
    names = [name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ())]
    return [(name, getattr(each, name)) for name in (*names, *getattr(each, "__dict__", {})) if hasattr(each, name)]


def difference(before: Any, after: Any, path: str = "job") -> list[str]:
    """Where two copies differ, caches of what is derived apart."""
    if type(before) is not type(after):
        return [f"{path}: {before!r} became {after!r}"]
    if isinstance(before, np.ndarray):
        same = before.shape == after.shape and np.array_equal(before, after, equal_nan=before.dtype.kind == "f")
        return [] if same else [f"{path}: {before} became {after}"]
    if isinstance(before, dict):
        if before.keys() != after.keys():
            return [f"{path}: keys {list(before)} became {list(after)}"]
        return [line for key in before for line in difference(before[key], after[key], f"{path}[{key!r}]")]
    if isinstance(before, list | tuple | deque):
        if len(before) != len(after):
            return [f"{path}: {len(before)} became {len(after)}"]
        return [x for i, (a, b) in enumerate(zip(before, after, strict=True)) for x in difference(a, b, f"{path}[{i}]")]
    if type(before).__module__.startswith("rankwatch") and not callable(before) and not isinstance(before, str):
        pairs = zip(fields_of(before), fields_of(after), strict=True)
        return [x for (name, a), (_, b) in pairs if name not in CACHES for x in difference(a, b, f"{path}.{name}")]
    return [] if before == after or before != before else [f"{path}: {before!r} became {after!r}"]


def readable(job: Job) -> dict[str, str]:
    """Paths that can be read of a job, each with its template."""
    app, filled = create_app(Monitor()), {"job_id": job.id, "look": "heartbeat_age", "dimension": "data", "number": "0"}
    incident = job.incidents[-1].id if job.incidents else "none"
    host = next(iter(job.nodes.values())).registration.host if job.nodes else "none"
    paths = sorted(
        context.path
        for context in iter_route_contexts(app.routes)
        if "GET" in (context.methods or ()) and context.path not in ENDLESS and not context.path.startswith(NOT_OF_JOBS)
    )
    return {path.format(incident_id=incident, host=host, **filled): path for path in paths}


@pytest.mark.parametrize("moment", MOMENTS)
def test_every_read_leaves_the_job_as_it_was(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_requests, "ANSWER_SECONDS", 0.0)  # no launcher is there to answer
    scene = MOMENTS[moment]()
    monitor = Monitor(clock=StagedClock(scene.now), read_only=True)
    monitor.adopt(scene.job)
    client = TestClient(create_app(monitor), base_url="http://127.0.0.1")
    paths = readable(scene.job)
    assert len(paths) > 25
    for path in paths:
        before = copy.deepcopy(scene.job)
        answer = client.get(path)
        assert answer.status_code in (200, 404, 409, 503), (path, answer.text)
        assert difference(before, scene.job) == [], path
