"""What an incident costs: one figure at every place that states it."""

from __future__ import annotations

import pytest

from monitor.core.accounted import Accounted
from monitor.core.scene import Scene
from rankwatch.cli.formatting import duration, gpu_time
from rankwatch.contract.enums import Action, ProcessEventKind
from rankwatch_monitor.core.views import digest, downtime, ended, incident_view, job_view, node_view, verdict
from rankwatch_monitor.core.views.phases import durations
from rankwatch_monitor.publish.text import report
from rankwatch_monitor.publish.webhook.notices import Announced, new_notices


def figures(scene: Scene) -> dict[str, float]:
    """The cost of the last incident as each of the places has it."""
    job, incident, now = scene.job, scene.job.incidents[-1], scene.now
    cost = job_view.goodput(job, now)["incidents"][0]["cost"]
    (row,) = node_view.one_node([job], "host-1", now)["incidents"]  # type: ignore[index]
    assert duration(downtime.seconds(job, incident, now)) in report.text(job, now)
    return {
        "goodput": cost.seconds + (0.0 if cost.since is None else now - cost.since),
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
    assert f"{4 * (scene.now - incident.timeline.since) / 60:.1f} GPU-minutes lost" in text


def test_the_cost_of_a_closed_incident_is_final() -> None:
    scene = Scene(4, hosts=2).run(20)
    scene.hang(3).until(lambda: scene.job.incidents and not scene.job.incidents[-1].open)
    incident = scene.job.incidents[-1]
    assert incident.timeline.first_step is not None
    assert incident.timeline.since is not None
    cost = incident.timeline.first_step - incident.timeline.since
    assert figures(scene) == dict.fromkeys(("goodput", "node", "digest"), cost)
    scene.run(30)
    assert figures(scene)["goodput"] == cost == downtime.total(scene.job, incident)


def test_the_steps_that_a_restart_threw_away_are_part_of_the_cost() -> None:
    scene = Accounted(hosts=2, checkpoint=50).run(60)
    scene.hang(3).until(lambda: scene.closings).run(30)
    job, incident = scene.job, scene.incident
    lost, total = downtime.of_lost_steps(job, incident), downtime.total(job, incident)
    assert lost is not None
    assert total is not None
    steps = incident.steps_lost
    assert steps is not None
    assert lost == scene.spent["lost_steps"] == pytest.approx(steps - 0.5, abs=1.0), "a step a second"
    assert total == pytest.approx(lost + sum(filter(None, durations(job, incident, scene.now).values())))
    assert total == downtime.seconds(job, incident, scene.now) == downtime.of_job(job, 0.0, scene.now)
    assert incident_view.shown(job, incident, scene.now)["lost_steps_s"] == lost
    words = f", of it {duration(lost)} of training lost ({steps} steps)"
    assert f"{duration(total)} in all{words}" in " ".join(report.text(job, scene.now).split())
    notice = [each.body for each in new_notices(job, Announced(), scene.now) if "is over" in each.body["text"]]
    assert notice[0]["incident"]["cost"] == {"seconds": total, "since": None}
    assert notice[0]["text"].endswith(f"Cost: {duration(total)}{words}; {gpu_time(total * job.world_size)}.")


def test_an_incident_without_a_restart_costs_its_downtime() -> None:
    scene = Accounted(hosts=2, on_hang="log").run(60)
    scene.hang(3).until_found().run(20)
    scene.resume().until(lambda: scene.closings)
    assert downtime.of_lost_steps(scene.job, scene.incident) is None
    assert downtime.total(scene.job, scene.incident) == downtime.held_up(scene.incident)


def test_repeated_crashes_cost_what_all_of_them_cost() -> None:
    scene = Accounted(hosts=2, checkpoint=50).run(92)
    for _ in range(2):
        scene.crash(1, "boom").run(2)
        scene.restart()
        scene.run(15)
    scene.crash(1, "boom").run(2)
    scene.finish(ProcessEventKind.FAILED, "no restart is left")
    again = ended.repeated(scene.job)
    assert again is not None
    assert again.times == 3
    assert again.lost_steps_s == pytest.approx(scene.spent["lost_steps"])
    assert again.lost_steps_s > 40.0
    held_up = sum(downtime.held_up(each) or 0.0 for each in scene.job.incidents)
    assert again.cost == pytest.approx(held_up + again.lost_steps_s)


def test_an_incident_of_a_lost_job_costs_until_the_job_was_last_heard_of() -> None:
    scene = Scene(4, hosts=2, on_hang="log").run(20)
    scene.hang(3).until_found()
    scene.cut_host(0).cut_host(1).run(900)
    incident = scene.job.incidents[0]
    assert incident.open
    assert str(verdict.job_state(scene.job, scene.now)[0]) == "lost"
    cost = scene.job.last_heard - downtime.began(incident)
    assert downtime.seconds(scene.job, incident, scene.now) == pytest.approx(cost)
    assert figures(scene)["node"] == pytest.approx(cost)


def test_an_outage_is_from_the_last_progress_to_the_first_new_step_and_goes_on_while_none_completes() -> None:
    scene = Scene(4, hosts=2).run(20)
    scene.hang(3).until_found()
    since = scene.job.incidents[-1].timeline.since
    assert since is not None
    assert downtime.outages(scene.job, scene.now) == [(since, scene.now, False)]
    scene.until(lambda: not scene.job.incidents[-1].open).run(30)
    first_step = scene.job.incidents[-1].timeline.first_step
    assert downtime.outages(scene.job, scene.now) == [(since, first_step, True)]


def test_before_an_ordered_restart_nothing_stood_still() -> None:
    scene = Scene(4, hosts=2).run(20)
    scene.order(Action.RESTART)
    scene.until(lambda: scene.closings).run(30)
    timeline = scene.job.incidents[-1].timeline
    assert downtime.outages(scene.job, scene.now) == [(timeline.restarted, timeline.first_step, True)]


def test_the_outage_with_which_a_job_failed_lasts_to_its_end() -> None:
    scene = Scene(4).run(20)
    scene.crash(2, "RuntimeError: boom").run(3)
    scene.finish(ProcessEventKind.FAILED, "all restarts are used up")
    scene.run(60)
    (incident,) = scene.job.incidents
    assert scene.job.ended is not None
    assert downtime.outages(scene.job, scene.now) == [(incident.timeline.since, scene.job.ended.at, False)]
