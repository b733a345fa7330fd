"""Fills the scripted monitor from jobs of the core, as the monitor's own routes would."""

from __future__ import annotations

import time
from collections.abc import Sequence

from starlette.testclient import TestClient

from monitor.core.scene import Scene
from rankwatch_monitor.app import create_app
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.views import digest, job_view, node_view
from rankwatch_monitor.http import stream
from rankwatch_monitor.service.monitor import Monitor
from web.scene_monitor import StagedClock
from web.scripted_monitor import Script
from web.whole import ROOT


def stage(script: Script, scenes: Sequence[Scene]) -> None:
    """Answer as the monitor's own routes do of these jobs; the browser's clock is that of the first."""
    now = scenes[0].now
    script.ahead = now - time.time()
    monitor = Monitor(clock=StagedClock(now), read_only=True)
    monitor.host_activity = None  # type: ignore[assignment]  # a host's state is that in each job alone
    jobs = [scene.job for scene in scenes]
    for job in jobs:
        monitor.adopt(job)
    client = TestClient(create_app(monitor), base_url="http://127.0.0.1")
    hosts = {host for job in jobs for host in job.columns.hosts}
    paths = ["/hosts", "/nodes", *(f"/nodes/{host}" for host in hosts)]
    for job in jobs:
        below = f"/jobs/{job.id}"
        paths += [below, *(f"{below}/{each}" for each in ("ranks", "goodput", "incidents"))]
        paths += [f"{below}/incidents/{each.id}" for each in job.incidents]
        script.jobs[job.id] = job_view.summary(job, now)
        script.ranks[job.id] = ["running"] * len(job.columns)
        script.pictures[job.id] = [(kind, plain(data)) for _, kind, data in stream._events(job, now, None)]
    script.answers = {path: client.get(ROOT + path).raise_for_status().json() for path in paths}
    script.answers["/digest"] = plain(digest.digest(jobs, now - 12 * 3600, now, now - 60, stored=True))


def scripted_places(script: Script) -> None:
    """The map of nodes, and one node of another job, whatever else the script has."""
    scene = Scene(16, hosts=2, job_id="j", on_hang="log").run(20)
    scene.job.performance._grow(16)
    scene.job.performance.layout.pipeline_R[:16] = [rank // 8 for rank in range(16)]
    scene.hang(13).until_found()
    now = scene.now
    script.answers |= {
        "/nodes": node_view.rows(node_view.glance([scene.job], now)),
        "/nodes/node-0": plain(node_view.one_node([scene.job], "host-1", now)),
        "/digest": plain(digest.digest([scene.job], 0.0, now, now - 60, stored=True)),
    }
