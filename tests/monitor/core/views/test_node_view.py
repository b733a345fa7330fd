"""Nodes over all jobs, one node, and one group of the parallel layout."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Cause, JobState, ProcessEventKind, ScoreReference, StragglerVerdict
from rankwatch_monitor.core.events import DeviceReading
from rankwatch_monitor.core.job import Ending
from rankwatch_monitor.core.straggler.findings import Finding, Straggler
from rankwatch_monitor.core.views import group_view, job_view, node_view
from rankwatch_monitor.core.views.headline import headline
from rankwatch_monitor.core.views.host_history import WINDOW
from rankwatch_monitor.core.views.node_view import of_states
from support.windows import DATA, Ranks, slower


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


def test_a_slow_rank_is_marked_on_its_node_in_its_group_and_on_the_map(hung: Scene) -> None:
    """Its state is running, as that of all others."""
    scene = Scene(4, hosts=2, job_id="two").run(20)
    scene.job.performance._grow(4)
    scene.job.performance.layout.pipeline_R[:4] = [0, 0, 1, 1]
    slow = Straggler(
        "s1", 3, "host-1", "0", Cause.DATA, ScoreReference.ROBUST, "Its input is slow.", 5.0, 6.0, share=0.4
    )
    scene.job.performance.stragglers += [slow, replace(slow, id="s2", rank=2, ended=6.0)]
    shown = node_view.one_node([scene.job], "host-1", scene.now)
    group = group_view.group(scene.job, "pipeline", 1, scene.now)
    assert shown is not None
    assert group is not None
    assert shown["summary"] == group["summary"] == "1 runs, rank 3 is slow."
    facts = {"share": 0.4, "score": None, "since": 5.0, "reason": "Its input is slow.", "cause": "data"}
    for rows in (shown["jobs"][0]["ranks"], group["ranks"]):
        assert [(row["rank"], row["straggler"]) for row in rows] == [(3, facts), (2, None)]
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
    assert found["summary"] == "No rank runs here now."


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


def test_a_node_has_its_ranks_devices_launchers_groups_and_incidents(hung: Scene) -> None:
    found = node_view.one_node([hung.job], "host-1", hung.now)
    assert found is not None
    assert found["summary"] == "Of 2 ranks, 1 is hung, 1 is waiting."
    [part] = found["jobs"]
    assert [(row["rank"], row["state"]) for row in part["ranks"]] == [(2, "hung"), (3, "waiting")]
    assert part["ranks"][0]["device"]["temperature"] == 81.0
    assert part["ranks"][1]["device"] is None
    assert part["ranks"][0]["groups"] == {"data": 0, "pipeline": 1}
    assert [each["node"] for each in part["launchers"]] == ["node-1"]
    assert part["groups"][-1] == {"dimension": "pipeline", "number": 1, "ranks": 2}
    assert [each["incident"] for each in found["incidents"]] == [hung.incident.id]
    json.dumps(found, allow_nan=False)
    assert node_view.one_node([hung.job], "elsewhere", hung.now) is None


def test_incidents_are_listed_by_the_beginning_of_the_trouble(hung: Scene) -> None:
    late = Scene(4, hosts=2, job_id="late", on_hang="log", section_timeouts={"step": 40}).run(15).hang(2).until_found()
    assert late.incident.opened_at > hung.incident.opened_at
    found = node_view.one_node([late.job, hung.job], "host-1", late.now)
    assert found is not None
    assert [each["job"] for each in found["incidents"]] == ["one", "late"]
    assert found["incidents"][0]["since"] > found["incidents"][1]["since"]


def test_a_group_names_its_culprit_or_states_that_none_is_in_it(hung: Scene) -> None:
    last, first = (group_view.group(hung.job, "pipeline", stage, hung.now) for stage in (1, 0))
    assert last is not None
    assert first is not None
    assert [row["rank"] for row in last["ranks"]] == [2, 3], "the worst first"
    assert last["states"] == {"hung": 1, "waiting": 1}
    what = headline(hung.incident).replace("Rank", "rank")
    its = what.replace("rank 2 on host-1", "it")
    assert last["standing"] == {
        "role": "cause", "text": f"Rank 2 of this group is the cause: {its}.", "detail": "",
        "rank": 2, "number": 1,
    }  # fmt: skip
    assert first["standing"] == {
        "role": "waits", "text": f"This group waits, it is not the cause: {what}.", "detail": "",
        "rank": 2, "number": 1,
    }  # fmt: skip
    assert last["summary"] == "Of 2 ranks, 1 is hung, 1 is waiting."
    assert last["label"]["state"] == "hung"
    assert last["advice"] == job_view.summary(hung.job, hung.now)["advice"]
    assert first["numbers"] == [0, 1]
    step = hung.job.furthest_iteration
    assert last["beside"] == [
        {"number": 0, "state": "waiting", "slow": 0, "iteration": step, "work": None, "step": None},
        {"number": 1, "state": "hung", "slow": 0, "iteration": step, "work": None, "step": None},
    ]
    assert last["collectives"]["incident"] in (None, hung.incident.id)
    json.dumps([last, first], allow_nan=False)
    assert group_view.group(hung.job, "pipeline", 7, hung.now) is None


def test_a_group_with_a_slow_rank_begins_with_it() -> None:
    scene = Scene(4, hosts=2, job_id="two").run(20)
    scene.job.performance._grow(4)
    scene.job.performance.layout.pipeline_R[:4] = [0, 0, 1, 1]
    reason = "Rank 3 on host-1 is slow: 3 ranks wait for it"
    scene.job.performance.stragglers.append(
        Straggler("s1", 3, "host-1", "0", Cause.DATA, ScoreReference.ROBUST, reason, 5.0, 6.0, share=0.4)
    )
    last, first = (group_view.group(scene.job, "pipeline", stage, scene.now) for stage in (1, 0))
    assert last is not None
    assert first is not None
    claim = reason.replace("Rank", "rank")
    assert (last["standing"]["role"], first["standing"]["role"]) == ("cause", "waits")
    assert last["standing"]["text"] == f"This group makes the others wait: {claim}."
    assert first["standing"]["text"] == f"This group waits, it is not the cause: {claim}."
    assert (first["standing"]["detail"], last["standing"]["detail"]) == ("", ""), "there is one line of it"
    assert (first["standing"]["rank"], first["standing"]["number"]) == (3, 1)
    assert [each["slow"] for each in first["beside"]] == [0, 1]
    assert first["summary"] == "Both ranks run and wait 40 % of each step for rank 3."
    scene.job.performance.stragglers[0].waiting = 3
    measured = group_view.group(scene.job, "pipeline", 0, scene.now)
    assert measured is not None
    assert measured["standing"]["text"] == (
        "This group waits, it is not the cause: rank 3 on host-1 is slow in its input; 3 ranks wait 40 % of each step."
    )
    assert measured["standing"]["detail"] == f"{reason}."
    assert last["summary"] == "1 runs, rank 3 is slow."


def test_a_suspicion_may_be_the_cause_and_a_silent_host_is_before_it_is_named() -> None:
    doubtful = Scene(4, hosts=2, section_timeouts={}, reports_durations=True).run(40).hang(2)
    doubtful.until(lambda: doubtful.job.open_incident is not None, within=400)
    quiet = Scene(4, hosts=2, on_hang="log").run(30).cut_host(1).run(25)
    for scene, lead in (
        (doubtful, "Rank 2 of this group may be the cause: it "),
        (quiet, "Ranks 2-3 of this group are the cause: node host-1"),
    ):
        scene.job.performance._grow(4)
        scene.job.performance.layout.pipeline_R[:4] = [0, 0, 1, 1]
        last, first = (group_view.group(scene.job, "pipeline", stage, scene.now) for stage in (1, 0))
        assert last is not None
        assert first is not None
        assert last["standing"]["text"].startswith(lead)
        assert (last["standing"]["role"], first["standing"]["role"]) == ("cause", "waits")


def test_no_group_is_the_cause_while_none_is_named_or_after_a_restart() -> None:
    def standing(scene: Scene) -> dict[str, Any]:
        scene.job.performance._grow(4)
        scene.job.performance.layout.pipeline_R[:4] = [0, 0, 1, 1]
        found = group_view.group(scene.job, "pipeline", 1, scene.now)
        assert found is not None
        standing: dict[str, Any] = found["standing"]
        return standing

    alike = Scene(4, hosts=2, on_hang="log").run(20).stall().until_found()
    assert standing(alike)["role"] == "unknown"
    assert standing(alike)["rank"] is None
    restarted = Scene(4, hosts=2).run(20).hang(2)
    restarted.until(lambda: restarted.state == "restarting" and restarted.job.attempt == 2)
    assert standing(restarted)["text"] == "The job restarts: no rank of the new attempt is named."
    fine = standing(Scene(4, hosts=2).run(20))
    assert (fine["role"], fine["text"]) == ("calm", "Nothing is wrong with a rank of this group.")


def test_groups_are_compared_by_the_own_work_of_their_slowest_rank() -> None:
    """All steps take as long; the group that others wait for works in more of it."""
    ranks = Ranks(8, stages=2, noise=0.0, work=(0.02, 0.08, 0.4))
    ranks.run(3, slower(1, DATA, 0.2))
    found = group_view.group(ranks.job, "pipeline", 1, ranks.now)
    assert found is not None
    works = {each["number"]: (round(each["work"], 3), round(each["step"], 3)) for each in found["beside"]}
    assert sorted(works.values()) == [(0.5, 0.72), (0.7, 0.72)]
    slow = int(ranks.job.performance.layout.pipeline_R[1])
    assert works[slow] == (0.7, 0.72)


def test_a_group_of_one_rank_is_listed_nowhere(hung: Scene) -> None:
    """Each rank has a data coordinate of its own: such a group is the rank itself."""
    hung.job.performance.layout.data_R[:4] = [0, 1, 2, 3]
    node = node_view.one_node([hung.job], "host-1", hung.now)
    alone = group_view.group(hung.job, "data", 2, hung.now)
    assert node is not None
    assert alone is not None
    [part] = node["jobs"]
    assert part["groups"] == [{"dimension": "pipeline", "number": 1, "ranks": 2}]
    assert [row["groups"] for row in part["ranks"] + alone["ranks"]] == [{"pipeline": 1}] * 3
    assert (alone["numbers"], alone["beside"]) == ([], [])


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


def test_what_labels_a_job_in_the_list_labels_it_on_its_node(hung: Scene) -> None:
    found = node_view.one_node([hung.job], "host-1", hung.now)
    assert found is not None
    [part] = found["jobs"]
    listed = job_view.summary(hung.job, hung.now)
    labels = ("state", "headline", "reason", "verdict", "open_incidents", "trouble_since")
    labels += ("checkpoint", "iteration", "step_seconds", "goodput", "started_at")  # what a restart loses
    assert {key: part[key] for key in labels} == {key: listed[key] for key in labels}


def test_states_are_counted_worst_first() -> None:
    assert of_states(["running"]) == "Its rank is running"
    assert of_states(["running"] * 2) == "Both ranks are running"
    assert of_states(["running"] * 16, [5]) == "15 run, rank 5 is slow"
    assert of_states(["running"] * 16, [5, 6], numbered=False) == "14 run, 2 are slow"
    assert of_states(["running"] * 16, [5], numbered=False) == "15 run, 1 is slow"
    assert of_states(["running"] * 2, [5, 6]) == "Both ranks are slow"
    assert of_states(["running"], [5]) == "Its rank is running; rank 5 is slow"
    assert of_states(["running", "running", "dead"], [5]) == "Of 3 ranks, 1 is dead, 2 are running; rank 5 is slow"
    mixed = ["running"] * 32 + ["waiting"] * 31
    assert of_states(mixed, [5], numbered=False) == "Of 63 ranks, 31 are waiting, 32 are running, 1 of them slow"
    assert of_states(["running"] * 1200) == "All 1,200 ranks are running"
    assert of_states(["running", "dead", "unseen"]) == "Of 3 ranks, 1 is dead, 1 is not seen yet, 1 is running"
