"""What is worth a message: each thing once, with its own sentence, and nothing of a job that is well."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from monitor.core.accounted import Accounted
from monitor.publish.scored import NOW, scored, straggler
from rankwatch.cli.formatting import gpu_time
from rankwatch.contract.enums import Cause, DirectiveKind, ProcessEventKind
from rankwatch_monitor.core.incident_record import Phase
from rankwatch_monitor.core.straggler.describe import Observation, sentence
from rankwatch_monitor.publish.webhook.bodies import is_for, render
from rankwatch_monitor.publish.webhook.notices import (
    LAUNCHERS_DECIDE,
    SHOWN,
    Announced,
    Event,
    Notice,
    announced_so_far,
    new_notices,
)


def notices_of(scene: Accounted, reported: Announced, seconds: int) -> list[Notice]:
    """What is reported while the scene goes on for so long; asked as often as the loop may."""
    found = []
    for _ in range(seconds):
        scene.run(1)
        found += new_notices(scene.job, reported, scene.now)
        assert new_notices(scene.job, reported, scene.now) == [], "the same is not told twice"
    return found


def events(notices: list[Notice]) -> list[str]:
    return [notice.body["event"] for notice in notices]


def test_a_job_that_is_well_is_no_news() -> None:
    assert notices_of(Accounted(ranks=4), Announced(), 120) == []


def test_an_incident_is_reported_when_it_opens_and_when_it_is_over() -> None:
    scene, reported = Accounted(ranks=4).run(20), Announced()
    scene.hang(2)
    opened, closed = notices_of(scene, reported, 100)
    incident = scene.job.incidents[0]
    assert incident.phase is Phase.CLOSED
    assert (opened.body["event"], closed.body["event"]) == ("incident_opened", "incident_closed")
    assert opened.key != closed.key
    assert opened.body["text"].startswith(incident.reason)
    assert f"Action: {incident.action.replace('_', ' ')}; {incident.action_reason}." in opened.body["text"]
    shown = opened.body["incident"]
    assert [(c["rank"], c["host"]) for c in shown["culprits"]] == [(c.rank, c.host) for c in incident.culprits]
    assert closed.body["incident"]["outcome"] == incident.outcome
    assert incident.outcome in closed.body["text"]
    lasted = closed.body["incident"]["cost"]["seconds"]
    assert closed.body["incident"]["cost_gpu_hours"] == pytest.approx(lasted * 4 / 3600)
    assert f"{gpu_time(lasted * 4)}." in closed.body["text"]
    json.dumps([opened.body, closed.body], allow_nan=False)


def test_a_suspicion_is_announced_when_it_is_confirmed() -> None:
    scene = Accounted(ranks=4).run(20)
    scene.hang(2).until_found()
    (incident,) = scene.job.incidents
    scene.job.incidents[:] = [replace(incident, confirmed=False)]
    announced = announced_so_far(scene.job, scene.now)
    assert new_notices(scene.job, announced, scene.now) == []
    scene.job.incidents[:] = [replace(incident, confirmed=True)]
    assert events(new_notices(scene.job, announced, scene.now)) == ["incident_opened"]


def test_an_incident_is_announced_with_what_the_stacks_show() -> None:
    scene, reported = Accounted(ranks=4).run(20), Announced()
    scene.stall()
    scene.ignored.add(DirectiveKind.CAPTURE)
    scene.until_found()
    assert events(new_notices(scene.job, reported, scene.now)) == []
    scene.send_evidence("node-0", directive=scene.issued[-1].id)
    scene.judge()
    (opened,) = new_notices(scene.job, reported, scene.now)
    assert "stuck in the same place" in opened.body["text"]


def test_a_suspicion_that_came_to_nothing_is_never_announced() -> None:
    scene, announced = Accounted(ranks=4).run(20), Announced()
    scene.hang(2).until_found()
    (incident,) = scene.job.incidents
    scene.job.incidents[:] = [replace(incident, confirmed=False, phase=Phase.CLOSED)]
    assert [e for e in events(new_notices(scene.job, announced, scene.now)) if e.startswith("incident")] == []


def test_the_same_thing_has_the_same_key_whichever_rank_reports_it() -> None:
    scene = Accounted(ranks=4).run(20)
    scene.hang(2).until_found()
    first, second = new_notices(scene.job, Announced(), scene.now), new_notices(scene.job, Announced(), scene.now + 5)
    assert [notice.key for notice in first] == [notice.key for notice in second] != []
    assert all(notice.key.replace("_", "").isalnum() for notice in first)


def test_what_was_before_is_reported_already() -> None:
    scene = Accounted(ranks=4).run(20)
    scene.hang(2).until_found()
    reported = announced_so_far(scene.job, scene.now)
    assert new_notices(scene.job, reported, scene.now) == []
    assert events(notices_of(scene, reported, 100)) == ["incident_closed"], "but its end is still to come"


@pytest.mark.parametrize(
    ("ends", "event"),
    [
        (ProcessEventKind.FINISHED, Event.JOB_FINISHED),
        (ProcessEventKind.FAILED, Event.JOB_FAILED),
        (ProcessEventKind.STOPPED, Event.JOB_STOPPED),
    ],
)
def test_the_end_of_a_job_is_reported_once(ends: ProcessEventKind, event: Event) -> None:
    scene, reported = Accounted(ranks=2), Announced()
    assert notices_of(scene, reported, 20) == []
    scene.finish(ends, "because of that")
    (notice,) = notices_of(scene, reported, 60)
    assert notice.body["event"] == event
    assert notice.body["text"].startswith(f"The job is {notice.body['job']['state']}")


@pytest.mark.parametrize(("fails", "event"), [(True, "job_failed"), (False, "incident_opened")])
def test_people_get_one_message_of_a_crash(fails: bool, event: str) -> None:
    scene, reported = Accounted(ranks=2).run(20), Announced()
    new_notices(scene.job, reported, scene.now)
    scene.crash(1, "ValueError: bad batch")
    found = notices_of(scene, reported, 2)
    if fails:
        scene.finish(ProcessEventKind.FAILED, "rank 1 crashed")
    else:
        scene.restart("rank 1 crashed")
    found += notices_of(scene, reported, 100)
    (message,) = [notice.body for notice in found if is_for("slack", notice.body)]
    assert message["event"] == event
    assert [culprit["rank"] for culprit in message["incident"]["culprits"]] == [1]
    assert json.loads(render("slack", message, None))["text"].startswith("\N{LARGE RED CIRCLE}")
    programs = events([notice for notice in found if is_for("json", notice.body)])
    assert programs == ["incident_opened", "incident_closed", *(["job_failed"] if fails else [])]
    chosen = {Event.INCIDENT_OPENED}
    assert events([n for n in found if n.body["event"] in chosen and is_for("slack", n.body, chosen)]) == [
        "incident_opened"
    ]


def test_a_crash_that_no_launcher_answers_is_announced_all_the_same() -> None:
    scene, reported = Accounted(ranks=2).run(20), Announced()
    scene.crash(1, "ValueError: bad batch")
    found = notices_of(scene, reported, int(LAUNCHERS_DECIDE) + 5)
    assert events(found)[0] == "incident_opened"


@pytest.mark.parametrize("launchers", [True, False])
def test_ranks_of_a_crash_that_shut_down_are_not_announced_as_a_finished_job(launchers: bool) -> None:
    """Their exits come a moment later, from their launchers; without any, it is all that will be heard."""
    scene, reported = Accounted(ranks=2, launchers=launchers), Announced()
    assert notices_of(scene, reported, 20) == []
    scene.job.columns.shut_down_R[:] = True
    found = events(new_notices(scene.job, reported, scene.now + 1.0))
    assert found == ([] if launchers else ["job_finished"])
    if launchers:
        scene.finish(ProcessEventKind.FAILED, "rank 1 crashed")
        assert "job_finished" not in events(notices_of(scene, reported, 60))


def test_a_job_that_is_lost_and_reports_again() -> None:
    scene, reported = Accounted(ranks=2, launchers=False), Announced()
    assert notices_of(scene, reported, 20) == []
    scene.cut(0, 1)
    found = [n for n in notices_of(scene, reported, 1200) if n.body["event"].startswith("job")]
    assert events(found) == ["job_lost"]
    scene.resume()
    found = [n for n in notices_of(scene, reported, 60) if n.body["event"].startswith("job")]
    assert events(found) == ["job_back"]


def test_stragglers_that_are_found_together_are_one_message() -> None:
    job, reported = scored(), Announced()
    new_notices(job, reported, NOW)
    stragglers = job.performance.stragglers
    stragglers += [straggler(1), straggler(2)]
    stragglers[0].reason = sentence(Observation(1, "host-0", 3, 0.1, 0.2, Cause.DATA, 0.15, 0.01, "data"))
    (found,) = new_notices(job, reported, NOW)
    assert found.body["event"] == "straggler_found"
    assert [s["rank"] for s in found.body["stragglers"]] == [1, 2]
    assert found.body["text"] == f"{stragglers[0].reason} {stragglers[1].reason}.", "the monitor's own sentences"
    assert found.body["text"].count("Rank 1 on host-0 is slow") == 1
    stragglers[0].ended = NOW + 60
    (ended,) = new_notices(job, reported, NOW + 60)
    assert ended.body["event"] == "straggler_ended"
    assert ended.body["text"] == (
        "Rank 1 on host-0 is as fast as its peers again after 11 min 00 s; it cost 1.25 GPU-hours."
    )
    assert new_notices(job, reported, NOW + 61) == []


def test_a_message_stays_small_however_many_are_slow() -> None:
    job, reported = scored(1000), Announced()
    new_notices(job, reported, NOW)
    job.performance.stragglers += [straggler(rank) for rank in range(500)]
    (found,) = new_notices(job, reported, NOW)
    assert (len(found.body["stragglers"]), found.body["stragglers_count"]) == (SHOWN, 500)
    assert f"And {500 - SHOWN} more ranks." in found.body["text"]
    assert len(json.dumps(found.body)) < 20_000
