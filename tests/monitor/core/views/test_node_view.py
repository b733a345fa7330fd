"""Nodes over all jobs, and one node."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Cause, JobState, ProcessEventKind, ScoreReference, StragglerVerdict
from rankwatch_monitor.core.events import DeviceReading
from rankwatch_monitor.core.job import Ending
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.straggler.findings import Finding, Straggler
from rankwatch_monitor.core.views import job_view, node_view
from rankwatch_monitor.core.views.host_history import WINDOW


@pytest.fixture
def hung() -> Scene:
    """Rank 2 of four on two hosts hangs; two stages of two ranks, of which the others wait."""
    scene = Scene(4, hosts=2, job_id="one", on_hang="log").run(20)
    performance = scene.job.performance
    performance._grow(4)
    for rank in range(4):
        performance.layout.data_R[rank], performance.layout.pipeline_R[rank] = rank % 2, rank // 2
    performance.readings[2] = DeviceReading(temperature=81.0, throttled=("thermal",))
    scene.hang(2).until_found()
    return scene.run(2)


def test_every_host_has_a_row_with_the_state_of_its_worst_rank(hung: Scene) -> None:
    fine = Scene(2, hosts=1, job_id="two").run(20)
    found = node_view.rows(node_view.glance([hung.job, fine.job], hung.now))
    states = {host: (found["legend"][code], ranks, named, jobs) for host, code, ranks, named, jobs in found["hosts"]}
    assert states == {"host-0": ("waiting", 4, 0, [0, 1]), "host-1": ("hung", 2, 1, [0])}
    assert [job["id"] for job in found["jobs"]] == ["one", "two"]


def test_a_slow_rank_is_marked_on_its_node_and_on_the_map(hung: Scene) -> None:
    """Its state is running, as that of all others."""
    scene = Scene(4, hosts=2, job_id="two").run(20)
    scene.job.performance._grow(4)
    scene.job.performance.layout.pipeline_R[:4] = [0, 0, 1, 1]
    slow = Straggler(
        "s1", 3, "host-1", "0", Cause.DATA, ScoreReference.ROBUST, "Its input is slow.", 5.0, 6.0, share=0.4
    )
    scene.job.performance.stragglers += [slow, replace(slow, id="s2", rank=2, ended=6.0)]
    shown = node_view.one_node([scene.job], "host-1", scene.now)
    assert shown is not None
    facts = {"share": 0.4, "score": None, "since": 5.0, "reason": "Its input is slow.", "cause": "data"}
    assert [(row["rank"], row["straggler"]) for row in shown["jobs"][0]["ranks"]] == [(3, facts), (2, None)]
    found = node_view.rows(node_view.glance([scene.job, hung.job], scene.now))
    assert (found["slow"], found["slow_jobs"]) == ({"host-1": 1}, {"host-1": ["two"]})
    [culprit] = hung.incident.culprits
    assert found["worst_jobs"] == {culprit.host: [hung.job.id]}
    scene.job.ended = Ending(JobState.FAILED, "stopped", scene.now)
    assert node_view.rows(node_view.glance([scene.job], scene.now))["slow"] == {}


def test_no_rank_of_a_lost_job_is_shown_as_running() -> None:
    scene = Scene(2).run(20)
    later = scene.now + 600
    assert job_view.summary(scene.job, later)["state"] == "lost"
    [row] = node_view.rows(node_view.glance([scene.job], later))["hosts"]
    assert node_view.LEGEND[row[1]] == "silent"


def test_a_named_host_stays_after_its_job_has_ended(hung: Scene) -> None:
    hung.job.ended = Ending(JobState.FAILED, "stopped", hung.now)
    rows = node_view.rows(node_view.glance([hung.job], hung.now))["hosts"]
    assert [(row[0], row[1] == node_view.NO_RANKS, row[3]) for row in rows] == [("host-1", True, 1)]
    found = node_view.one_node([hung.job], "host-1", hung.now)
    assert found is not None


def test_jobs_of_a_node_stand_by_how_much_they_need_a_person() -> None:
    suspected = Scene(4, hosts=2, job_id="suspected", section_timeouts={}, reports_durations=True).run(20).hang(2)
    suspected.until(lambda: suspected.job.open_incident is not None)
    others = [Scene(4, hosts=2, job_id=job).run(20) for job in ("healthy", "restarting", "slow", "failed")]
    healthy, restarting, slow, failed = others
    slow.job.performance.findings = (Finding(StragglerVerdict.WORKER, Cause.DATA, "Rank 3 is slow.", since=5.0),)
    for scene in others:
        scene.run(round(suspected.now - scene.now))
    restarting.crash(2, "no data")
    failed.finish(ProcessEventKind.FAILED, "no restart is allowed")
    jobs = [each.job for each in (healthy, restarting, failed, suspected, slow)]
    found = node_view.one_node(jobs, "host-1", slow.now)
    assert found is not None
    assert [part["job"] for part in found["jobs"]] == ["failed", "slow", "suspected", "restarting", "healthy"]
    assert failed.job.ended is not None
    failed.job.ended = replace(failed.job.ended, at=slow.now - WINDOW - 1)
    found = node_view.one_node(jobs, "host-1", slow.now)
    assert found is not None
    assert found["jobs"][-1]["job"] == "failed"


def test_a_node_has_its_ranks_devices_launchers_and_incidents(hung: Scene) -> None:
    found = node_view.one_node([hung.job], "host-1", hung.now)
    assert found is not None
    [part] = found["jobs"]
    assert [(row["rank"], row["state"]) for row in part["ranks"]] == [(2, "hung"), (3, "waiting")]
    assert part["ranks"][0]["device"]["temperature"] == 81.0
    assert part["ranks"][1]["device"] is None
    assert [each["node"] for each in part["launchers"]] == ["node-1"]
    assert [each["incident"] for each in found["incidents"]] == [hung.incident.id]
    json.dumps(plain(found), allow_nan=False)
    assert node_view.one_node([hung.job], "elsewhere", hung.now) is None


def test_incidents_are_listed_by_the_beginning_of_the_trouble(hung: Scene) -> None:
    late = Scene(4, hosts=2, job_id="late", on_hang="log", section_timeouts={"step": 40}).run(15).hang(2).until_found()
    assert late.incident.opened_at > hung.incident.opened_at
    found = node_view.one_node([late.job, hung.job], "host-1", late.now)
    assert found is not None
    assert [each["job"] for each in found["incidents"]] == ["one", "late"]
    assert found["incidents"][0]["since"] > found["incidents"][1]["since"]


def test_a_launcher_that_is_not_heard_is_silent_until_its_job_ends(hung: Scene) -> None:
    def launcher() -> tuple[float, bool]:
        found = node_view.one_node([hung.job], "host-1", hung.now)
        assert found is not None
        [each] = found["jobs"][0]["launchers"]
        return each["last_seen"], each["silent"]

    last = hung.job.nodes["node-1"].seen
    assert launcher() == (last, False)
    hung.cut_host(1).run(20)
    assert launcher() == (hung.job.nodes["node-1"].seen, True)
    assert launcher()[0] < hung.now - 15
    hung.job.ended = Ending(JobState.FAILED, "stopped", hung.now)
    assert not launcher()[1]
