"""An ended job: states of its ranks, why no restart followed, the next step; also when read back from its record."""

from __future__ import annotations

from typing import Any

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import NoRestart, ProcessEventKind, RankState
from rankwatch_monitor.core.views import downtime, ended, job_view
from rankwatch_monitor.core.views.advice import failed as failed_job
from rankwatch_monitor.core.views.advice.record import Step
from rankwatch_monitor.core.views.headline import headline
from rankwatch_monitor.core.views.node_view import one_node

ERROR = "RuntimeError: CUDA error: no kernel; is the device gone?"
ASSERT = "RuntimeError: CUDA error: device-side assert triggered"


def steps_of(shown: dict[str, Any]) -> list[str]:
    """The sentences of a job's advice."""
    return [step["text"] for step in shown["advice"]["steps"]]


def failed(why: str, no_restart: NoRestart = NoRestart.USED_UP) -> Scene:
    """A job that ended with the crash of rank 2."""
    scene = Scene(4, hosts=2).run(20).die(2, exit_code=1, message=ERROR)
    scene.run(2)
    end(scene, f"rank 2 on host-1 exited with code 1: {ERROR}", why, no_restart)
    return scene.run(5)


def end(scene: Scene, cause: str, why: str, no_restart: NoRestart = NoRestart.USED_UP) -> None:
    scene.finish(ProcessEventKind.FAILED, f"{cause}; {why}", cause=cause, no_restart=str(no_restart), why_none=why)


def states(scene: Scene) -> list[str]:
    return [row["state"] for row in job_view.ranks(scene.job, scene.now)]


@pytest.mark.parametrize("stored", [False, True])
def test_ranks_of_a_finished_job_are_finished(stored: bool) -> None:
    scene = Scene(4, hosts=2).run(20)
    assert states(scene) == ["running"] * 4
    scene.finish()
    scene.run(5)
    scene = scene.reload() if stored else scene
    assert states(scene) == ["finished"] * 4
    shown = job_view.summary(scene.job, scene.now)
    assert (shown["state"], shown["ranks_reporting"], shown["no_restart"], shown["advice"]) == ("finished", 0, "", None)
    node = one_node([scene.job], "host-0", scene.now)
    assert node is not None
    assert [row["state"] for row in node["jobs"][0]["ranks"]] == ["finished"] * 2


def test_a_crash_is_after_the_step_that_its_launcher_read_not_after_that_of_the_last_report() -> None:
    scene = Scene(4, hosts=2).run(20)
    reported = scene.job.furthest_iteration
    assert reported is not None
    scene.die(2, exit_code=1, message=ERROR, iteration=reported + 23).run(2)
    [incident] = scene.job.incidents
    assert incident.furthest_iteration == reported + 23
    end(scene, f"rank 2 on host-1 exited with code 1: {ERROR}", "all 3 restarts are used up (--max-restarts)")
    assert job_view.summary(scene.job, scene.now)["iteration"] == reported + 23


@pytest.mark.parametrize("stored", [False, True])
def test_ranks_of_a_failed_job_are_ended_and_the_crash_is_known(stored: bool) -> None:
    scene = failed("all 3 restarts are used up (--max-restarts)")
    scene = scene.reload() if stored else scene
    assert states(scene) == ["ended", "ended", "dead", "ended"]
    assert job_view.ranks(scene.job, scene.now)[2]["reason"] == f"its process exited with code 1: {ERROR}"


def test_ranks_of_a_stopped_job_are_ended_also_those_that_shut_down() -> None:
    scene = Scene(4).run(20)
    scene.die(1, exit_code=0)
    scene.finish(ProcessEventKind.STOPPED, "stopped by an order")
    assert states(scene) == ["ended"] * 4


def test_ages_of_an_ended_job_are_those_of_its_end() -> None:
    scene = Scene(4).run(20)
    scene.finish()
    before = job_view.ranks(scene.job, scene.now)
    assert before[0]["heartbeat_age"] is not None
    assert job_view.ranks(scene.run(100).job, scene.now) == before


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (NoRestart.USED_UP, "Remove the cause, then launch the job again."),
        (NoRestart.NOT_ALLOWED, "Remove the cause, then launch the job again."),
        (NoRestart.FAILED_AT_START, "Correct what fails at the start"),
        (NoRestart.NO_PROGRESS, "Find out why no further step"),
    ],
)
@pytest.mark.parametrize("stored", [False, True])
def test_a_failure_is_stated_once_with_why_no_restart_followed(code: NoRestart, step: str, stored: bool) -> None:
    why = "so no restart follows"
    scene = failed(why, code)
    shown = job_view.summary(scene.reload().job if stored else scene.job, scene.now)
    assert (shown["state"], shown["no_restart"]) == ("failed", why)
    assert step in steps_of(shown)[-1]
    assert shown["headline"] == headline(scene.job.incidents[-1])


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("no_restart", [*NoRestart])
def test_why_no_restart_followed_is_a_field_and_no_matter_of_words(no_restart: NoRestart, stored: bool) -> None:
    scene = Scene(4, hosts=2).run(20)
    cause = "rank 2 on host-1 exited with code 1: ValueError: all restarts are used up; there is no script"
    why = "for a reason in new words; really"
    told = {"cause": cause, "no_restart": str(no_restart), "why_none": why}
    scene.finish(ProcessEventKind.FAILED, "a sentence of which nothing is taken", **told)
    scene = scene.reload() if stored else scene
    shown = job_view.summary(scene.job, scene.now)
    step = Step(*failed_job._NEXT.get(no_restart, failed_job._OTHERWISE))
    assert (shown["no_restart"], steps_of(shown)[-1]) == (why, step.text)
    assert ended.cause(scene.job) == cause


def test_a_rejected_result_is_not_restarted() -> None:
    scene = Scene(4).run(20)
    why = "it rejected a result, so the job is not restarted automatically"
    end(scene, "rank 1 on host-0 exited with code 17", why, NoRestart.RESULT_REJECTED)
    shown = job_view.summary(scene.job, scene.now)
    assert shown["headline"] == "Rank 1 on host-0 exited with code 17"
    assert shown["no_restart"] == "it rejected a result, so the job is not restarted automatically"
    assert "Test its device" in steps_of(shown)[-1]


def test_other_states_have_neither_a_failure_nor_a_next_step() -> None:
    scene = Scene(4).run(20)
    shown = job_view.summary(scene.job, scene.now)
    assert (shown["no_restart"], shown["advice"]) == ("", None)
    scene.cut_host(0).run(200)
    shown = job_view.summary(scene.job, scene.now)
    assert (shown["state"], shown["no_restart"]) == ("lost", "")
    assert shown["advice"]["rule"] == "lost"


def test_a_rank_is_suspected_until_its_hang_is_confirmed() -> None:
    scene = Scene(4, reports_durations=True).run(60).hang(1).until_found()
    scene.until(lambda: scene.incident.culprits)
    assert [scene.rank_state(rank) for rank in range(4)] == [
        RankState.WAITING, RankState.SUSPECTED, RankState.WAITING, RankState.WAITING,
    ]  # fmt: skip
    certain = Scene(4, on_hang="log").run(60).hang(1).until_found()
    assert certain.rank_state(1) is RankState.HUNG


def crashed_again(
    times: int,
    *,
    hosts: int = 2,
    ranks: tuple[int, ...] = (2,),
    error: str = ERROR,
    checkpoint: int = 5,
    first: int = 20,
) -> Scene:
    """A job in which a rank, or several in turn, crashed so many times with one error, and no restart is left.

    ``checkpoint``: each attempt resumes after the last multiple of so many steps; ``first``: seconds of the first one.
    """
    scene = Scene(4, hosts=hosts, checkpoint=checkpoint).run(first)
    for n in range(times):
        scene.die(ranks[n % len(ranks)], exit_code=1, message=error)
        if n + 1 < times:
            scene.run(1).event(ProcessEventKind.RESTARTING, attempt=n + 2)
            scene.launch(attempt=n + 2)
            scene.run(10)
    rank = ranks[(times - 1) % len(ranks)]
    host = scene.job.columns.hosts[rank]
    cause, why = f"rank {rank} on {host} exited with code 1: {error}", f"all {times - 1} restarts are used up"
    end(scene.run(2), cause, why)
    return scene.run(5)


@pytest.mark.parametrize("stored", [False, True])
def test_a_crash_that_came_again_is_counted_with_its_whole_cost_and_separated_by_the_next_launch(stored: bool) -> None:
    scene = crashed_again(4)
    scene = scene.reload() if stored else scene
    found = job_view.summary(scene.job, scene.now)
    first, *_, last = scene.job.incidents
    again = found["repeated"]
    assert (again["times"], again["rank"], again["host"]) == (4, 2, "host-1")
    assert again["seconds"] == last.opened_at - first.opened_at
    assert again["text"].startswith("4th crash of rank 2 on host-1 with the same error in ")
    assert again["cost"] == sum(downtime.seconds(scene.job, each, scene.now) for each in scene.job.incidents)
    assert steps_of(found)[1:] == [
        "Check GPU 0 on host-1 for errors.",
        "Launch again without host-1: if rank 2 fails again, suspect data or code; if not, host-1.",
    ]


def test_crashes_after_one_step_are_counted_and_point_to_data_or_code() -> None:
    scene = crashed_again(4, checkpoint=15)
    found = job_view.summary(scene.job, scene.now)
    steps = [each.furthest_iteration for each in scene.job.incidents]
    assert len(set(steps)) == 2
    assert found["repeated"]["text"].endswith(f", 3 of 4 crashes after step {steps[-1]}")
    assert [step.partition(":")[0] for step in steps_of(found)] == [
        f"Read what rank 2 logged around step {steps[-1]}, in the output of the launcher on host-1.",
        f"Look at the batch after step {steps[-1]}",
        "Check GPU 0 on host-1 for errors.",
        "Launch again without host-1",
    ]
    found = job_view.summary((other := crashed_again(4)).job, other.now)
    assert found["repeated"]["same_step"] is None, "each attempt got further"


def test_an_attempt_that_got_past_the_step_of_most_crashes_is_named_and_its_batch_is_not_suspected() -> None:
    scene = crashed_again(4, checkpoint=15, first=28)
    found = job_view.summary(scene.job, scene.now)
    reached, step = (scene.job.incidents[n].furthest_iteration for n in (0, -1))
    assert reached > step
    assert found["repeated"]["text"].endswith(
        f", 3 of 4 crashes after step {step}; attempt 1 passed step {step} and reached {reached}"
    )
    assert "Look at the batch" not in str(steps_of(found))


def test_an_assertion_of_a_kernel_is_looked_for_in_data_and_code() -> None:
    scene = crashed_again(4, checkpoint=15, error=ASSERT)
    found = job_view.summary(scene.job, scene.now)
    step = found["repeated"]["step"]
    assert [each.partition(":")[0] for each in steps_of(found)][1:] == [
        f"Look at the batch after step {step}",
        "Launch again without host-1",
    ], "one launch"
    assert not any("nvidia-smi" in step["command"] for step in found["advice"]["steps"])


def test_where_an_attempt_got_past_the_step_the_host_is_left_out_first() -> None:
    scene = Scene(4, hosts=2, checkpoint=15).run(28)
    for attempt in (2, 3, 4):
        scene.die(2, exit_code=1, message=ASSERT)
        if attempt < 4:
            scene.run(1).event(ProcessEventKind.RESTARTING, attempt=attempt)
            scene.launch(attempt=attempt)
            scene.run(8)
    end(scene.run(2), f"rank 2 on host-1 exited with code 1: {ASSERT}", "all 2 restarts are used up (--max-restarts)")
    found, (first, *_, last) = job_view.summary(scene.job, scene.now), scene.job.incidents
    assert first.furthest_iteration > last.furthest_iteration
    assert [step.partition(":")[0] for step in steps_of(found)] == [
        f"Read what rank 2 logged around step {last.furthest_iteration}, in the output of the launcher on host-1.",
        "Launch again without host-1",
    ]
    assert steps_of(found)[-1].endswith(
        ": if rank 2 fails again, suspect data or code, and set CUDA_LAUNCH_BLOCKING=1 to see the failing call; "
        "if not, host-1."
    )


def test_on_the_only_host_the_next_launch_is_on_another_one() -> None:
    scene = crashed_again(2, hosts=1)
    assert steps_of(job_view.summary(scene.job, scene.now))[-1].startswith("Launch again on another node: ")


def test_a_single_crash_and_crashes_of_other_ranks_are_not_repeated() -> None:
    for scene in (failed("all 3 restarts are used up (--max-restarts)"), crashed_again(2, ranks=(2, 1))):
        found = job_view.summary(scene.job, scene.now)
        assert found["repeated"] is None
        assert steps_of(found)[-1] == "Remove the cause, then launch the job again."
    scene = Scene(4, hosts=2).run(20)
    assert job_view.summary(scene.job, scene.now)["repeated"] is None
