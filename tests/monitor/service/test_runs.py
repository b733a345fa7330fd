"""Two runs of one job id at one monitor: the second is refused the id, and the first is warned, once each launcher."""

from __future__ import annotations

from dataclasses import replace

from monitor.core.scene import Scene
from rankwatch.contract.messages import NodeRegistration, RunClaim
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.service.runs import MOST_CONFLICTS, WARNED_WITHIN, Runs

FIRST, SECOND = RunClaim("first", "node-a", 11), RunClaim("second", "node-b", 22)
NOW = 1_000.0


def job(run: str = "first", seen: float = NOW) -> Job:
    made = Job("job", NOW)
    nodes.register(made, NodeRegistration("n0", "node-a", 11, 8, run=run), seen)
    return made


def test_the_first_claim_holds_and_the_same_run_may_repeat_it() -> None:
    runs = Runs()
    assert runs.claim("job", FIRST, None, NOW) == ""
    assert runs.claim("job", FIRST, job(), NOW + 1) == ""
    assert not runs.has_warning("job", "n0")


def test_of_two_that_start_together_one_is_refused() -> None:
    runs = Runs()
    runs.claim("job", FIRST, None, NOW)
    assert runs.claim("job", SECOND, None, NOW + 0.1) == "the launcher on node-a (process 11)"
    assert runs.claim("other", SECOND, None, NOW + 0.1) == ""


def test_of_each_further_run_the_launchers_are_warned_once() -> None:
    runs, first = Runs(), job()
    for run, warned in ((SECOND, 1), (SECOND, 0), (replace(SECOND, run="third"), 1)):
        runs.claim("job", run, first, NOW)
        assert len(runs.take_warnings("job", "n0")) == warned


def test_a_second_run_is_refused_while_launchers_of_the_first_live() -> None:
    runs, first = Runs(), job(seen=NOW + 100)
    assert "node-a" in runs.claim("job", SECOND, first, NOW + 105)
    assert runs.claim("job", SECOND, first, NOW + 116) == "", "killed, and silent since"


def test_a_run_continues_the_record_of_one_that_has_ended() -> None:
    scene = Scene().run(5)
    runs = Runs()
    for node in scene.job.nodes.values():
        object.__setattr__(node.registration, "run", "first")
    assert runs.claim(scene.job.id, SECOND, scene.job, scene.now)
    scene.finish()
    assert scene.job.ended is not None
    assert runs.claim(scene.job.id, SECOND, scene.job, scene.now) == ""


def test_a_run_that_waited_for_its_dead_predecessor_is_not_warned_about_itself() -> None:
    runs = Runs()
    runs.claim("job", FIRST, None, NOW)
    assert runs.claim("job", SECOND, job(), NOW)
    assert runs.has_warning("job", "n0")
    assert runs.claim("job", SECOND, job(), NOW + 100) == ""
    assert not runs.has_warning("job", "n1")


def test_launchers_of_earlier_versions_are_no_rivals() -> None:
    assert Runs().claim("job", SECOND, job(run=""), NOW) == ""


def test_each_launcher_of_the_first_run_is_warned_once() -> None:
    runs = Runs()
    runs.claim("job", FIRST, None, NOW)
    runs.claim("job", SECOND, job(), NOW)
    for _ in range(2):
        runs.claim("job", SECOND, job(), NOW + 1)  # it asks again and again, for a while
    [warning] = runs.take_warnings("job", "n0")
    assert "node-b (process 22)" in warning
    assert runs.take_warnings("job", "n0") == []
    assert runs.has_warning("job", "n1")
    runs.forget("job")
    assert not runs.has_warning("job", "n1")


def test_conflicts_about_ids_that_never_become_jobs_are_forgotten() -> None:
    runs = Runs()
    for number in range(3 * MOST_CONFLICTS):
        at = NOW + number * 2 * WARNED_WITHIN / MOST_CONFLICTS
        runs.claim(f"job-{number}", FIRST, None, at)
        assert runs.claim(f"job-{number}", SECOND, None, at)
    assert len(runs._conflicts) <= MOST_CONFLICTS
    assert runs.has_warning(f"job-{3 * MOST_CONFLICTS - 1}", "n0")
