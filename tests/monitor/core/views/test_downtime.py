"""What an incident costs: one figure at every place that states it."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from rankwatch.cli.formatting import duration
from rankwatch_monitor.core.views import digest, downtime, job_view, node_view
from rankwatch_monitor.publish.text import report


def figures(scene: Scene) -> dict[str, float]:
    """The cost of the last incident as each of the places has it."""
    job, incident, now = scene.job, scene.job.incidents[-1], scene.now
    (row,) = node_view.one_node([job], "host-1", now)["incidents"]  # type: ignore[index]
    assert duration(downtime.seconds(job, incident, now)) in report.text(job, now)
    return {
        "goodput": job_view.goodput(job, now)["incidents"][0]["lost_s"],
        "node": (now if row["until"] is None else row["until"]) - row["since"],
        "digest": downtime.of_job(job, 0.0, now),
    }


def test_an_open_incident_costs_since_its_trouble_began_until_now() -> None:
    scene = Scene(4, hosts=2, on_hang="log").run(20)
    scene.hang(3).until_found().run(40)
    incident = scene.job.incidents[-1]
    assert incident.timeline.since is not None
    assert incident.timeline.since < incident.opened_at
    assert figures(scene) == dict.fromkeys(("goodput", "node", "digest"), scene.now - incident.timeline.since)
    text = digest.digest([scene.job], 0.0, scene.now, 0.0, stored=True)["summary"]
    assert f"held up by incidents for {scene.now - incident.timeline.since:.0f} s" in text


def test_the_cost_of_a_closed_incident_is_final() -> None:
    scene = Scene(4, hosts=2).run(20)
    scene.hang(3).until(lambda: scene.job.incidents and not scene.job.incidents[-1].open)
    incident = scene.job.incidents[-1]
    assert incident.timeline.first_step is not None
    assert incident.timeline.since is not None
    cost = incident.timeline.first_step - incident.timeline.since
    assert figures(scene) == dict.fromkeys(("goodput", "node", "digest"), cost)
    scene.run(30)
    assert figures(scene)["goodput"] == cost == job_view.incident_durations(incident)["total_s"]


def test_an_incident_of_a_lost_job_costs_until_the_job_was_last_heard_of() -> None:
    scene = Scene(4, hosts=2, on_hang="log").run(20)
    scene.hang(3).until_found()
    scene.cut_host(0).cut_host(1).run(900)
    incident = scene.job.incidents[0]
    assert incident.open
    assert str(job_view.job_state(scene.job, scene.now)[0]) == "lost"
    cost = scene.job.last_heard - downtime.began(incident)
    assert downtime.seconds(scene.job, incident, scene.now) == pytest.approx(cost)
    assert figures(scene)["node"] == pytest.approx(cost)
