"""Fills the scripted monitor from jobs of the core, as the monitor's own routes would."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import Any

from monitor.core.scene import Scene
from rankwatch_monitor.core.hang import limits
from rankwatch_monitor.core.incident.lifecycle import verdicts_of
from rankwatch_monitor.core.views import (
    digest,
    group_view,
    incident_view,
    job_view,
    named_hosts,
    node_view,
    rank_logs,
    stack_errors,
)
from web.scripted_monitor import LEGEND, Script


def stage(script: Script, scenes: Sequence[Scene]) -> None:
    """Answer with the state of these jobs; the browser's clock is that of the first."""
    now = scenes[0].now
    script.ahead = now - time.time()
    jobs = [scene.job for scene in scenes]
    answers: dict[str, Any] = {
        "/hosts": {"hosts": named_hosts.named_hosts(jobs, now)},
        "/nodes": node_view.rows(node_view.glance(jobs, now)),
        "/digest": digest.digest(jobs, now - 12 * 3600, now, now - 60, stored=True),
    }
    for host in {host for job in jobs for host in job.columns.hosts}:
        answers[f"/nodes/{host}"] = node_view.one_node(jobs, host, now)
    for job in jobs:
        summary = job_view.summary(job, now)
        script.jobs[job.id], script.ranks[job.id] = summary, ["running"] * len(job.columns)
        incidents = [incident_view.shown(job, each, now) for each in reversed(job.incidents)]
        below = f"/jobs/{job.id}"
        answers[below] = {
            **summary,
            "policy": job.policy.to_json(),
            "timeouts": limits.table(job.policy, job.durations),
            "nodes": job_view.launchers(job, now),
        }
        answers[f"{below}/ranks"] = {"ranks": job_view.ranks(job, now)}
        answers[f"{below}/goodput"] = job_view.goodput(job, now)
        answers[f"{below}/incidents"] = {"incidents": incidents}
        for each in job.incidents:
            answers[f"{below}/incidents/{each.id}"] = {
                **incident_view.shown(job, each, now),
                "of_host": None if (host := incident_view.of_host(job, each, now)) is None else host.to_json(),
                "stack_groups": job_view.stack_groups(each),
                "stack_errors": stack_errors.stack_errors(job, each),
                **rank_logs.shown(job, each),
                "collectives": [],
            }
        for dimension in node_view.DIMENSIONS:
            for number in set(node_view.layout_column(job, dimension).tolist()) - {-1}:
                answers[f"{below}/groups/{dimension}/{number}"] = group_view.group(job, dimension, number, now)
        codes_R = job_view.rank_states(job, verdicts_of(job, now), now)
        step = summary["iteration"]
        grid = {
            "attempt": job.attempt, "world_size": job.world_size, "legend": LEGEND,
            "states": base64.b64encode(codes_R.tobytes()).decode(), "iterations": {"min": step, "max": step},
        }  # fmt: skip
        script.pictures[job.id] = [("job", summary), ("grid", grid), *(("incident", each) for each in incidents)]
    script.answers = answers


def scripted_places(script: Script) -> None:
    """The map of nodes, one node and one group of another job, whatever else the script has."""
    scene = Scene(16, hosts=2, job_id="j", on_hang="log").run(20)
    scene.job.performance._grow(16)
    scene.job.performance.layout.pipeline_R[:16] = [rank // 8 for rank in range(16)]
    scene.hang(13).until_found()
    now = scene.now
    node, group = (
        node_view.one_node([scene.job], "host-1", now),
        group_view.group(scene.job, "pipeline", 1, now),
    )
    script.answers |= {
        "/nodes": node_view.rows(node_view.glance([scene.job], now)),
        "/nodes/node-0": node,
        "/jobs/j/groups/pipeline/1": group,
        "/digest": digest.digest([scene.job], 0.0, now, now - 60, stored=True),
    }
