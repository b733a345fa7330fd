"""A host that is quiet in one job and heard by another is up, and every view of the job states so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import JobState, ProcessEventKind
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.core.views.headline import LONGEST
from rankwatch_monitor.core.views.host_activity import REFRESH, HostActivity
from rankwatch_monitor.core.views.node_view import one_node
from rankwatch_monitor.core.views.quiet_host import quiet_host
from rankwatch_monitor.publish.snapshot import snapshot
from rankwatch_monitor.publish.webhook.notices import Announced, new_notices


def silent(seconds: int = 25) -> Scene:
    """A job that is not heard from host-1."""
    return Scene(8, hosts=2, on_hang="log").run(30).cut_host(1).run(seconds)


def beside(scene: Scene, others: int) -> dict[str, Job]:
    """The job among others, that are heard from both hosts until now."""
    jobs = {"silent": scene.job}
    for number in range(others):
        other = Scene(8, hosts=2)
        other.job.id = f"other-{number}"
        jobs[other.job.id] = other.run(int(scene.now - other.now)).job
    return jobs


def summary(scene: Scene, jobs: Mapping[str, Job]) -> dict[str, Any]:
    return job_view.summary(scene.job, scene.now, HostActivity(jobs))


@pytest.mark.parametrize("seconds", [25, 70])
def test_where_other_jobs_report_the_host_is_up_also_after_the_limit_of_silence(seconds: int) -> None:
    scene = silent(seconds)
    shown = summary(scene, beside(scene, 2))
    quiet = shown["quiet_host"]
    assert (quiet["hosts"], quiet["ranks"], quiet["other_jobs"]) == (["host-1"], [4, 5, 6, 7], 2)
    assert shown["headline"] == "4 ranks on host-1 silent; the node is up (2 other jobs report)"
    assert len(shown["headline"]) <= LONGEST
    advice = shown["advice"]
    assert (advice["rule"], advice["host"], advice["proposed"]) == ("quiet_host", "host-1", False)
    assert advice["text"] == "Look at this job's launcher and ranks on node host-1, which is up"
    [launcher] = [node for node in scene.job.nodes.values() if node.registration.host == "host-1"]
    pids = ",".join(map(str, [launcher.registration.launcher_pid, *scene.job.columns.pid_R[4:8].tolist()]))
    assert advice["steps"][0]["command"] == f"ssh host-1 ps -o pid,stat,etime,wchan:24,args -p {pids}"
    assert advice["alternatives"] == [
        f"The launcher (PID {launcher.registration.launcher_pid}) is gone: "
        "start it again on host-1, or restart without host-1.",
        "The launcher is there, its ranks are gone or in state Z: restart.",
        "One is in state D: restart without host-1.",
        "One is in state T: kill -CONT PID, or restart.",
        "All are in state S or R: check the network from host-1 to the monitor.",
    ]
    assert advice["notes"] == [
        "The launcher on host-1 is silent too.",
        "Nothing restarts the ranks by itself (on_hang = log).",
    ]


def test_the_answers_name_no_launcher_that_the_command_does_not_show() -> None:
    scene = silent()
    jobs = beside(scene, 1)
    scene.job.nodes.clear()
    found = summary(scene, jobs)["advice"]["alternatives"]
    assert found[0] == "The ranks are gone or in state Z: restart."
    assert not any("launcher" in each for each in found)


def test_publishers_know_the_other_jobs_too() -> None:
    scene = silent(70)
    activity = HostActivity(beside(scene, 2))
    headline = snapshot(scene.job, scene.now, activity).headline
    assert headline == summary(scene, beside(scene, 2))["headline"]
    assert headline.endswith("; the node is up (2 other jobs report)")
    [opened] = new_notices(scene.job, Announced(state=JobState.HUNG), scene.now, activity)
    assert headline in opened.body["text"]
    incident = opened.body["incident"]
    assert incident["headline"] == headline
    assert opened.body["job"]["advice"] == summary(scene, beside(scene, 2))["advice"]


def test_its_twin_a_host_of_which_no_job_is_heard_may_be_down() -> None:
    scene = silent(70)
    [opened] = new_notices(scene.job, Announced(state=JobState.HUNG), scene.now, HostActivity({"silent": scene.job}))
    assert " is up" not in opened.body["text"]
    assert opened.body["job"]["advice"]["orders"][0]["action"] == "restart_excluding_node"


def test_the_page_of_the_node_and_that_of_the_job_agree() -> None:
    scene = silent()
    jobs = beside(scene, 2)
    found = one_node(jobs.values(), "host-1", scene.now, HostActivity(jobs))
    assert found is not None
    assert found["presence"].startswith("Ranks report in 2 of 3 jobs; ")
    assert {each["headline"] for each in found["incidents"]} == {summary(scene, jobs)["headline"]}
    [of_job] = found["of_jobs"]
    assert of_job["advice"] == summary(scene, jobs)["advice"]


def test_where_no_other_job_is_heard_from_it_the_host_may_be_down() -> None:
    scene = silent()
    stale, ended = Scene(8, hosts=2, on_hang="log"), Scene(8, hosts=2)
    stale.run(30).cut_host(1).run(25)
    ended.run(54)
    ended.finish(ProcessEventKind.FAILED, "out of memory")
    for jobs in ({}, {"stale": stale.job}, {"ended": ended.job}):
        shown = summary(scene, {"silent": scene.job, **jobs})
        assert shown["advice"]["text"] == "Check whether node host-1 is up"
        assert shown["quiet_host"]["other_jobs"] == 0
        assert shown["advice"]["steps"][0]["command"] == "ping -c 3 -- host-1"


def test_a_launcher_alone_shows_that_the_host_is_up() -> None:
    scene = silent()
    jobs = beside(scene, 2)
    jobs["other-1"].columns.last_heard_R[4:8] -= 100.0
    assert summary(scene, jobs)["quiet_host"]["other_jobs"] == 1, "as the page of the node counts them"
    del jobs["other-1"]
    jobs["other-0"].columns.last_heard_R[4:8] -= 100.0
    assert summary(scene, jobs)["quiet_host"]["other_jobs"] == 1
    for node in jobs["other-0"].nodes.values():
        node.seen -= 100.0
    assert summary(scene, jobs)["quiet_host"]["other_jobs"] == 0


def test_the_jobs_are_read_once_for_all_that_have_a_quiet_host() -> None:
    scene = silent()
    jobs = Counted(beside(scene, 2))
    activity = HostActivity(jobs)
    for moment in (0.0, 1.0, REFRESH - 0.1):
        quiet = quiet_host(scene.job, scene.now + moment, activity)
        assert quiet is not None
        assert quiet.other_jobs == 2
    assert jobs.reads == 1
    quiet_host(scene.job, scene.now + REFRESH, activity)
    assert jobs.reads == 2
    healthy = Counted(beside(Scene(8, hosts=2).run(30), 0))
    job_view.summary(healthy["silent"], healthy["silent"].last_heard, HostActivity(healthy))
    assert healthy.reads == 0


class Counted(dict[str, Job]):
    """Jobs, and how often all of them were read."""

    reads = 0

    def values(self) -> Any:
        self.reads += 1
        return super().values()
