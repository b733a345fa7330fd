"""Hosts by how often confirmed incidents named them."""

from __future__ import annotations

import json
from dataclasses import replace

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action
from rankwatch.contract.messages import FAULTS
from rankwatch_monitor.core.views.digest import digest
from rankwatch_monitor.core.views.headline import headline
from rankwatch_monitor.core.views.named_hosts import named_hosts
from rankwatch_monitor.core.views.node_view import glance, one_node


def hung(job: str, *ranks: int) -> Scene:
    """A job of two hosts of two ranks, in which these ranks hung one after another and went on."""
    scene = Scene(4, hosts=2, job_id=job, on_hang="log").run(20)
    for rank in ranks:
        before = len(scene.job.incidents)
        scene.hang(rank).until(lambda before=before: len(scene.job.incidents) > before)  # type: ignore[misc]
        scene.run(2).resume().run(10)
    return scene


def test_hosts_are_counted_over_jobs_and_the_last_incident_is_linked() -> None:
    one, other = hung("one", 2, 3, 0), hung("other", 3)
    rows = named_hosts([one.job, other.job], one.now)
    assert [(row["host"], row["incidents"], row["jobs"]) for row in rows] == [
        ("host-1", 3, ["one", "other"]),
        ("host-0", 1, ["one"]),
    ]
    assert [row["gpu"] for row in rows] == ["rank 3 in load_batch: 2 hangs in 2 jobs", None]
    last = one.job.incidents[-1]
    assert rows[1]["last"] == {
        "job": "one",
        "incident": last.id,
        "opened_at": last.opened_at,
        "since": last.timeline.since,
        "headline": headline(last),
    }
    assert last.timeline.since is not None
    assert last.timeline.since < last.opened_at
    json.dumps(rows)


def test_what_happens_to_a_job_with_injected_faults_counts_against_no_host() -> None:
    one, rehearsed = hung("one", 3), hung("rehearsed", 3)
    for node in rehearsed.job.nodes.values():
        node.registration = replace(node.registration, facts={FAULTS: "rank=3,step=5,kind=hang"})
    jobs = [one.job, rehearsed.job]
    assert [(row["host"], row["incidents"], row["jobs"]) for row in named_hosts(jobs, one.now)] == [
        ("host-1", 1, ["one"])
    ]
    assert one_node([rehearsed.job], "host-1", one.now)["incidents"] == []  # type: ignore[index]
    assert glance([rehearsed.job], rehearsed.now).named == {}


def test_orders_and_suspicions_name_no_host() -> None:
    scene = hung("job", 2)
    scene.order(Action.CAPTURE)
    scene.run(10)
    assert [row["incidents"] for row in named_hosts([scene.job], scene.now)] == [1]
    scene.job.incidents[0] = replace(scene.job.incidents[0], confirmed=False)
    assert named_hosts([scene.job], scene.now) == []


def test_what_is_suspected_and_what_is_silent_is_counted_apart_as_on_the_page_of_the_node() -> None:
    one, silent = hung("one", 2), Scene(4, hosts=2, job_id="silent", on_hang="log").run(30).cut_host(1).run(25)
    doubtful = Scene(4, hosts=2, job_id="doubtful", section_timeouts={}, reports_durations=True).run(40).hang(3)
    doubtful.until(lambda: doubtful.job.incidents and doubtful.incident.culprits, within=400)
    jobs = [one.job, silent.job, doubtful.job]
    [row] = named_hosts(jobs, silent.now)
    summary = digest(jobs, 0.0, silent.now, 0.0, stored=True)["summary"]
    assert summary.startswith("2 incidents and 1 open suspicion in 3 jobs, ")
    assert (row["host"], row["incidents"], row["counted"]) == (
        "host-1",
        1,
        "2 incidents (1 hang, 1 silent) and 1 open suspicion",
    )
    node = one_node(jobs, "host-1", silent.now)
    assert node is not None
    assert (node["counted"], node["named_by"]) == (row["counted"], row["incidents"])
