"""The digest of what happened since a moment, in sentences and figures."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Cause, JobState, ScoreReference, VerdictKind
from rankwatch_monitor.core.incident_record import Phase
from rankwatch_monitor.core.job import KEPT_INCIDENTS, Ending, Job
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views import digest as views
from rankwatch_monitor.core.views import downtime
from rankwatch_monitor.core.views.digest import LINKS

ELECTIVE = {
    VerdictKind.ORDERED,
    VerdictKind.STRAGGLER,
    VerdictKind.WRONG_RESULT,
    VerdictKind.RESTARTED_IN_PROCESS,
}
"""Counted in lines of their own."""


def digest(jobs: list[Job], since: float, now: float, started_at: float, *, stored: bool) -> dict[str, Any]:
    """The digest as JSON has it."""
    found: dict[str, Any] = plain(views.digest(jobs, since, now, started_at, stored=stored))
    return found


def told(jobs: list[Job], since: float, now: float, started_at: float = 0.0, stored: bool = True) -> dict[str, str]:
    """The digest's sentences by kind."""
    found = digest(jobs, since, now, started_at, stored=stored)
    json.dumps(found, allow_nan=False)
    return {line["kind"]: line["text"] for line in found["lines"]} | {"summary": found["summary"]}


def hung(times: int, **policy: str) -> Scene:
    """Rank 3 of four hangs again and again."""
    scene = Scene(4, hosts=2, **policy).run(20)
    for number in range(times):
        scene.hang(3).until(lambda number=number: len(scene.job.incidents) > number)  # type: ignore[misc]
        scene.until(lambda: not scene.job.open_incident) if policy.get("on_hang") == "restart" else scene.run(
            2
        ).resume()
        scene.run(30)
    return scene


def test_a_quiet_night_is_stated() -> None:
    scene = Scene(4).run(60)
    assert told([scene.job], 0.0, scene.now) == {"summary": "No incident and no restart"}


def test_incidents_time_and_nodes_are_told() -> None:
    scene = hung(2, on_hang="log")
    found = told([scene.job], 0.0, scene.now)
    assert found["incidents"] == "2 hangs: a section took longer than its limit."
    assert found["nodes"] == "1 node was named by more than one incident."
    [node] = next(
        each["links"]
        for each in digest([scene.job], 0.0, scene.now, 0.0, stored=True)["lines"]
        if each["kind"] == "nodes"
    )
    host = scene.job.incidents[0].culprits[0].host
    assert node["text"] == f"{host}: 2 incidents; rank 3 in load_batch: 2 hangs in 1 job"
    lost = sum(each.closed_at - each.timeline.since for each in scene.job.incidents)  # type: ignore[operator,misc]
    assert found["time"] == f"Incidents cost jobs {lost:.0f} s: {lost * 4 / 60:.1f} GPU-minutes."
    assert found["summary"] == f"2 incidents in 1 job, {lost * 4 / 60:.1f} GPU-minutes lost"
    assert "restarts" not in found


def test_only_what_lies_in_the_time_counts() -> None:
    scene = hung(2, on_hang="log")
    between = scene.job.incidents[1].opened_at
    found = told([scene.job], between, scene.now)
    assert found["incidents"] == "1 hang: a section took longer than its limit."
    assert "nodes" not in found
    assert told([scene.job], scene.now, scene.now)["summary"] == "No incident and no restart"


@pytest.mark.parametrize("kind", [kind for kind in VerdictKind if kind not in ELECTIVE])
def test_each_kind_of_incident_has_plain_words(kind: VerdictKind) -> None:
    """The names of the enumeration are no words for a reader."""
    scene = hung(1, on_hang="log")
    scene.job.incidents[0] = replace(scene.job.incidents[0], kind=kind, phase=Phase.ACTING)
    found = told([scene.job], 0.0, scene.now)["incidents"]
    assert found.startswith("1 ")
    assert ", not over yet: " in found
    assert not {"kind", "overrun", "(open)"} & set(found.split())
    assert "_" not in found


@pytest.mark.parametrize("cause", Cause)
def test_each_straggler_has_a_cause_in_plain_words(cause: Cause) -> None:
    scene = Scene(4).run(20)
    scene.job.performance.stragglers += [
        Straggler("s1", 2, "host-0", "0", cause, ScoreReference.ROBUST, "", scene.now, scene.now, cost_gpu_hours=1.5)
    ]
    [line] = digest([scene.job], scene.now - 1, scene.now, 0.0, stored=True)["lines"]
    assert ": rank 2 on host-0, slow" in line["links"][0]["text"]
    assert line["links"][0]["text"].endswith(", cost 1.50 GPU-hours")


def test_restarts_are_counted_with_the_steps_they_cost() -> None:
    scene = hung(2, on_hang="restart", max_restarts=5)  # type: ignore[arg-type]
    steps = sum(each.steps_lost or 0 for each in scene.job.incidents)
    again = f" {steps} steps had to be repeated." if steps else ""
    assert told([scene.job], 0.0, scene.now)["restarts"] == f"2 restarts in 1 job.{again}"


def test_suspicions_are_told_apart_from_incidents() -> None:
    scene = hung(1, on_hang="log")
    scene.job.incidents[0] = replace(scene.job.incidents[0], confirmed=False)
    found = told([scene.job], 0.0, scene.now)
    assert found["suspicions"] == "1 suspicion, not confirmed."
    assert "incidents" not in found
    assert "time" not in found


def test_what_an_open_suspicion_takes_is_stated_apart_from_what_incidents_cost() -> None:
    scene = Scene(4, reports_durations=True).run(60).hang(1).until_found().run(5)
    assert not scene.incident.confirmed
    took = scene.now - downtime.began(scene.incident)
    gpus = f"{4 * took / 60:.1f} GPU-minutes"
    found = told([scene.job], 0.0, scene.now)
    assert found["at_stake"] == f"Open suspicions have taken {took:.0f} s so far: {gpus}."
    assert found["summary"] == "1 open suspicion in 1 job"
    assert "time" not in found
    scene.until(lambda: scene.incident.confirmed).run(1)
    assert "at_stake" not in told([scene.job], 0.0, scene.now)


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.FINISHED])
def test_jobs_that_ended_are_told_with_their_reason(state: JobState) -> None:
    scene = Scene(4).run(20)
    scene.job.ended = Ending(state, "the disk was full", scene.now)
    found = digest([scene.job], 0.0, scene.now + 5, 0.0, stored=True)
    [line] = found["lines"]
    assert (line["kind"], line["text"]) == (str(state), f"1 job {state}.")
    assert line["links"][0]["text"] == f"{scene.job.name} ({scene.job.id}): the disk was full"
    assert line["links"][0]["at"] == scene.now


def test_a_lost_job_is_told() -> None:
    scene = Scene(4).run(20)
    found = told([scene.job], scene.now - 10, scene.now + 600)
    assert found["lost"] == "1 job lost."
    unheard = scene.now + 600 - scene.job.last_heard
    gpus = f"{4 * unheard / 60:.1f} GPU-minutes"
    assert found["at_stake"].endswith(f" since they were last heard, {gpus} if they have stood still.")
    assert found["summary"] == "No incident and no restart"
    later = told([scene.job], scene.now + 500, scene.now + 600)
    assert later["at_stake"].startswith("Lost jobs: 1 min 40 s since "), "only what lies in the time"


def test_stragglers_that_appeared_are_told_with_their_cost() -> None:
    scene = Scene(4).run(20)
    slow = Straggler("s1", 2, "host-0", "0", Cause.DATA, ScoreReference.ROBUST, "", scene.now, scene.now)
    scene.job.performance.stragglers += [slow, replace(slow, id="s2", ended=scene.now, cost_gpu_hours=1.5)]
    found = told([scene.job], scene.now - 1, scene.now)
    assert found["stragglers"] == "2 stragglers appeared, 1 still slow; cost 1.50 GPU-hours."
    assert found["summary"] == "1.50 GPU-hours of waiting for slow ranks"


def test_what_is_left_out_is_stated() -> None:
    scene = hung(1, on_hang="log")
    incident = scene.job.incidents[0]
    assert digest([scene.job], 0.0, scene.now, 0.0, stored=False)["notes"] == []
    [note] = digest([scene.job], 0.0, scene.now, scene.now - 5, stored=False)["notes"]
    assert note == {
        "text": "The monitor was started later and has no store; nothing before is known.",
        "at": scene.now - 5,
    }
    scene.job.incidents[:] = [replace(incident, id=str(number)) for number in range(KEPT_INCIDENTS)]
    found = digest([scene.job], 0.0, scene.now, 0.0, stored=True)
    assert [note["at"] for note in found["notes"]] == [incident.opened_at]
    assert len(found["lines"][0]["links"]) == LINKS
    assert found["lines"][0]["more"] == KEPT_INCIDENTS - LINKS


def test_jobs_of_one_name_are_distinguished_in_every_line() -> None:
    scenes = [Scene(4, job_id=job, on_hang="restart").run(20).hang(1).until_found().run(9) for job in ("a", "b")]
    for scene in scenes:
        scene.job.ended = Ending(JobState.FAILED, "the disk was full", scene.now)
    lines = digest([scene.job for scene in scenes], 0.0, scenes[0].now + 5, 0.0, stored=True)["lines"]
    of_jobs = [line for line in lines if any(link["job"] for link in line["links"])]
    assert {line["kind"] for line in of_jobs} == {"incidents", "restarts", "time", "failed"}
    for line in of_jobs:
        assert [link["text"].partition(":")[0] for link in line["links"]] in (
            ["gpt (a)", "gpt (b)"],
            ["gpt (b)", "gpt (a)"],
        )
