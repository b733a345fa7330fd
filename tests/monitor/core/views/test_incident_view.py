"""What incidents of all jobs show of the host of one of them, and the restart without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from monitor.core.incident.test_exclusion import needing, spare
from monitor.core.scene import Rank, Scene
from monitor.core.views.test_node_verdict import NEEDED, crashed, with_stacks
from rankwatch.contract.enums import Action
from rankwatch.contract.messages import RankStack
from rankwatch_monitor.core.hang.stacks import Stacks
from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.views import host_commands
from rankwatch_monitor.core.views.advice.situation import PATIENCE
from rankwatch_monitor.core.views.crash_advice import separating
from rankwatch_monitor.core.views.host_activity import REFRESH, HostActivity
from rankwatch_monitor.core.views.host_history import WINDOW, HostHistory, about_by_host, host_history
from rankwatch_monitor.core.views.incident_view import of_host, shown
from rankwatch_monitor.core.views.job_view import summary
from rankwatch_monitor.core.views.node_view import one_node

RESTART = "Restart without host-1, where incidents repeat"
HANG_LEFT = "a hang in load_batch on any rank left points to data or code"
ERROR_LEFT = "the same error on any rank left points to data or code"


def hung(job: str = "now", **policy: Any) -> Scene:
    return Scene(4, hosts=2, job_id=job, on_hang="log", **policy).run(30).hang(3).until_found()


def among(scene: Scene, *others: Scene) -> dict[str, Any]:
    """The open incident of a job among other jobs, as the API shows it, with the advice about it."""
    activity = HostActivity({each.job.id: each.job for each in (scene, *others)})
    incident = shown(scene.job, scene.job.incidents[-1], scene.now, activity)
    return incident | {"advice": summary(scene.job, scene.now, activity)["advice"]}


def notes(found: dict[str, Any]) -> str:
    text: str = " ".join(found["advice"]["notes"])
    return text


def texts(found: dict[str, Any]) -> list[str]:
    return [step["text"] for step in found["advice"]["steps"]]


def lately(scene: Scene, now: float) -> HostHistory:
    return host_history("host-1", about_by_host([scene.job], now).get("host-1", []), now)


def orders(incident: dict[str, Any]) -> list[str]:
    return [order["action"] for order in incident["advice"]["orders"]]


def test_job_list_and_node_state_the_same_of_a_host_on_which_hangs_repeat() -> None:
    earlier, scene = with_stacks("earlier", 3), hung()
    jobs = {each.job.id: each.job for each in (earlier, scene)}
    activity = HostActivity(jobs)
    found = among(scene, earlier)
    fact = "host-1 was named in 2 incidents of 2 jobs in 24 h"
    pointed = "Rank 3 on host-1 hangs in load_batch: 2 hangs in 2 jobs."
    assert found["of_host"]["text"] == f"{fact}, this one included. {pointed}"
    assert notes(found) == f"After a restart without host-1: {HANG_LEFT}."
    assert orders(found) == ["restart_excluding_node", "restart"]
    assert texts(found)[0] == f"{RESTART}: nothing restarts the ranks by itself."
    assert (found["advice"]["text"], found["advice"]["proposed"]) == (RESTART, True)
    assert found["advice"]["orders"][0]["ranks"] == [3]
    node = one_node(list(jobs.values()), "host-1", scene.now, activity)
    assert node is not None
    assert (node["verdict"], node["counted"]) == (pointed, "2 incidents"), "the same incidents, stated once"
    assert node["todo"] is not None
    assert node["todo"].text == texts(found)[1]
    [of_job] = [each for each in node["of_jobs"] if each["job"] == "now"]
    assert of_job["advice"] == found["advice"]


def test_other_jobs_on_a_host_are_counted_and_not_named() -> None:
    earlier, scene = with_stacks("earlier", 3), hung()
    activity = HostActivity({each.job.id: each.job for each in (earlier, scene)})
    found = shown(scene.job, scene.incident, scene.now, activity)
    node = one_node([scene.job], "host-1", scene.now, activity)
    assert node is not None
    for shown_to_one_job in (found, node):
        assert "of 2 jobs" in str(shown_to_one_job)
        assert "earlier" not in str(shown_to_one_job)


def test_a_first_hang_proposes_the_plain_restart_and_offers_the_other() -> None:
    scene = hung()
    found = among(scene, Scene(4, hosts=2, job_id="healthy").run(30))
    assert orders(found) == ["restart", "restart_excluding_node"]
    assert found["of_host"]["text"] == ""
    assert notes(found) == f"If it hangs again, restart without host-1: {HANG_LEFT}."


@pytest.mark.parametrize(
    "scene",
    [
        Scene(4, job_id="now", on_hang="log"),
        Scene(4, hosts=2, job_id="now", on_hang="log", max_restarts=0),
        Scene(4, hosts=2, job_id="now", on_hang="log", observe_only=True),
    ],
    ids=["one host", "no restart left", "observe only"],
)
def test_a_host_that_cannot_be_left_out_is_not_offered(scene: Scene) -> None:
    scene.run(30).hang(3).until_found()
    found = among(scene, with_stacks("earlier", 3))
    assert "restart_excluding_node" not in orders(found)
    assert notes(found) == ""


@pytest.mark.parametrize("repeats", [False, True])
def test_where_too_few_nodes_would_remain_another_launcher_comes_first(repeats: bool) -> None:
    scene = needing(hung(), 2)
    others = [with_stacks("earlier", 3)] if repeats else []
    found = among(scene, *others)
    assert "restart_excluding_node" not in orders(found)
    assert notes(found) == (NEEDED if repeats else f"If it hangs again, {NEEDED[0].lower()}{NEEDED[1:]}")
    node = one_node(
        [scene.job], "host-1", scene.now, HostActivity({each.job.id: each.job for each in (scene, *others)})
    )
    assert node is not None
    assert node["of_jobs"][0]["advice"] == found["advice"]
    enough = among(needing(scene, 1), *others)
    assert "restart_excluding_node" in orders(enough)
    assert "start a launcher" not in notes(enough)


def test_after_crashes_that_repeat_another_launcher_comes_first_too() -> None:
    scene = needing(Scene(4, hosts=2, job_id="now").run(80), 2)
    scene.die(3, exit_code=1, message="CUDA error").run(1)
    assert notes(among(scene, crashed("earlier", 3, 2), crashed("elsewhere", 2, 1))).endswith(NEEDED)
    assert NEEDED not in notes(among(scene)), "a first crash"


@pytest.mark.parametrize("least", [1, 2])
def test_a_silent_host_that_the_job_needs_is_not_left_out_before_another_comes(least: int) -> None:
    scene = needing(Scene(8, hosts=2, on_hang="log").run(30), least).cut_host(1).run(70)
    found = among(scene)["advice"]
    [order] = found["orders"]
    if least == 1:
        assert (found["rule"], order["action"]) == ("broken_node", "restart_excluding_node")
        assert (order["ranks"], order["words"], found["proposed"]) == ([4, 5, 6, 7], "Restart without host-1", True)
    else:
        assert (found["rule"], order["action"], found["proposed"]) == ("node_needed", "restart", False)
        assert found["steps"][0]["text"].startswith(NEEDED)
        assert found["text"] == "First start a launcher on another node, or start the job again with fewer"
    assert found["steps"][0]["command"] == "ping -c 3 -- host-1"


def test_before_stacks_were_captured_they_come_first() -> None:
    scene = Scene(4, hosts=2, job_id="now", observe_only=True).run(30).hang(3).until_found()
    assert not scene.incident.stacks
    scene.job.policy = scene.job.policy.changed({"observe_only": False})
    found = among(scene, with_stacks("earlier", 3))
    assert orders(found) == ["capture", "restart_excluding_node", "restart"]
    assert texts(found)[0].startswith("Capture the stacks, then restart without host-1, ")


def test_an_open_suspicion_counts_beside_the_confirmed_and_one_that_is_over_does_not() -> None:
    scene = Scene(4, hosts=2, job_id="now", section_timeouts={}, reports_durations=True).run(30).hang(3)
    scene.until(lambda: scene.job.incidents and scene.incident.culprits, within=400)
    assert not scene.incident.confirmed
    found = among(scene, with_stacks("earlier", 3))
    assert found["of_host"]["text"].startswith(
        "host-1 was named in 1 incident and 1 open suspicion of 2 jobs in 24 h, this one included."
    )
    assert orders(found) == ["restart_excluding_node", "restart", "capture"]
    assert found["advice"]["waits"], "the order is offered, and Rankwatch acts by itself"
    scene.resume().until(lambda: not scene.incident.open)
    assert lately(scene, scene.now).clause == ""


@pytest.mark.parametrize("crashes", [False, True])
def test_where_a_spare_takes_the_place_of_the_host_the_same_rank_shows_what_is_the_cause(crashes: bool) -> None:
    scene = Scene(4, hosts=2, job_id="now", on_hang="log").run(30)
    if crashes:
        scene.crash(3, "ValueError: no data").run(1)
    else:
        scene.hang(3).until_found()
    fewer = notes(among(scene))
    assert fewer.endswith(f"restart without host-1: {ERROR_LEFT if crashes else HANG_LEFT}.")
    spare(scene)
    shows = separating(3, "host-1", "fails" if crashes else "hangs")
    assert notes(among(scene)).endswith(f"restart without host-1: {shows}.")


def test_where_no_stack_shows_a_hang_no_function_is_named() -> None:
    scene = Scene(4, hosts=2, job_id="now", on_hang="log").run(30).hang(3).until_found()
    scene.job.incidents[-1] = replace(scene.incident, stacks=Stacks())
    assert "restart without host-1: a hang on any rank left points" in notes(among(scene))


def test_incidents_count_for_a_day_and_orders_never() -> None:
    scene = crashed("one", 3, 2)
    scene.order(Action.CAPTURE)
    last = max(each.opened_at for each in scene.job.incidents)
    assert len(lately(scene, last).about) == 2
    assert lately(scene, last + 2 * WINDOW).clause == ""
    node = one_node([scene.job], "host-1", last + 2 * WINDOW)
    assert node is not None
    assert "host-1 was named" not in node["verdict"]


def test_crashes_of_one_gpu_count_over_all_jobs_with_what_to_do_if_it_fails_again() -> None:
    scene = Scene(4, hosts=2, job_id="now").run(80)
    scene.die(3, exit_code=1, message="CUDA error").run(1)
    found = among(scene, crashed("earlier", 3, 2), crashed("elsewhere", 2, 1))
    assert found["of_host"]["text"] == (
        "host-1 was named in 4 incidents of 3 jobs in 24 h, this one included. "
        "GPU 1 of host-1, rank 3: 3 crashes in 2 jobs. "
        "The error is the same each time."
    )
    assert texts(found)[0].startswith("Check GPU 1 of host-1 for errors; ")
    assert notes(found) == f"After a restart without host-1: {ERROR_LEFT}."
    other = Scene(4, hosts=2, job_id="other").run(30)
    other.die(3, exit_code=1, message="KeyError: 1").run(1)
    assert "the same" not in among(other, crashed("earlier", 3, 2))["of_host"]["text"]


def test_one_host_cannot_be_left_out_and_an_incident_that_is_over_has_no_next_failure() -> None:
    scene = Scene(4, job_id="now").run(30)
    scene.die(3, exit_code=1, message="ValueError: no data").run(1)
    found = among(scene, crashed("earlier", 3, 1))
    assert found["of_host"]["text"] == "", "the other job has that GPU on another host"
    step = scene.incident.furthest_iteration
    assert notes(found) == f"If it crashes again: read the traceback of rank 3 around step {step}."
    past = crashed("past", 3, 2)
    assert among(past)["of_host"] is None
    over = of_host(past.job, past.job.incidents[-1], past.now)
    assert over is not None
    assert over["text"] == "GPU 1 of host-1, rank 3: 2 crashes in 1 job. The error is the same each time."
    later = of_host(past.job, past.job.incidents[-1], past.now + 2 * WINDOW)
    assert later is not None
    assert later["text"] == "", "it counts no more, and is alone"


def test_what_points_to_a_gpu_stands_only_beside_incidents_of_that_gpu_or_its_rank() -> None:
    crashes, hang = [crashed("one", 3, 2), crashed("two", 3, 1)], hung().job
    hang.incidents[0] = replace(
        hang.incidents[0], culprits=tuple(each._replace(rank=2, local_rank=0) for each in hang.incidents[0].culprits)
    )
    activity = HostActivity({job.id: job for job in (*(each.job for each in crashes), hang)})
    other = shown(hang, hang.incidents[0], crashes[0].now, activity)["of_host"]
    advised = summary(hang, crashes[0].now, activity)["advice"]
    fact = "host-1 was named in 4 incidents (3 crashes, 1 hang) of 3 jobs in 24 h, this one included."
    assert other["text"] == f"{fact} 3 of them are of GPU 1, rank 3."
    assert len(advised["steps"]) == 1, "what its crashes point to is no advice about this hang"
    of_rank = of_host(crashes[0].job, crashes[0].job.incidents[0], crashes[0].now, activity)
    assert of_rank is not None
    assert "GPU 1 of host-1, rank 3: 3 crashes in 2 jobs. The error is the same each time." in of_rank["text"]


def test_the_index_over_all_jobs_is_kept_for_a_while_and_the_job_itself_is_fresh() -> None:
    other = with_stacks("other", 3)
    jobs = {"other": other.job}
    activity = HostActivity(jobs)

    def named(fresh: list[Scene], now: float) -> int:
        return len(activity.history("host-1", [each.job for each in fresh], now).about)

    now = other.now
    assert named([], now) == 1
    jobs["second"] = crashed("second", 3, 1).job
    assert named([], now + REFRESH / 2) == 1
    assert named([crashed("second", 3, 2)], now + REFRESH / 2) == 3
    assert named([], now + 2 * REFRESH) == 2


def test_an_incident_without_a_host_states_nothing_of_one() -> None:
    scene = hung()
    bare = Incident("i", "now", scene.incident.kind, 1, scene.now, "All ranks wait.")
    assert shown(scene.job, bare, scene.now)["of_host"] is None


@pytest.mark.parametrize("fault", ["frozen", "watched"])
def test_a_hang_without_a_stack_has_the_command_that_takes_it(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(4, hosts=2, job_id="now", on_hang="log", launchers=fault == "frozen").run(30)
    frozen, taken = scene.ranks[3], type(scene.ranks[3]).stack

    def stack(rank: Rank) -> RankStack:
        return replace(taken(rank), frames=(), error="py-spy timed out") if rank is frozen else taken(rank)

    monkeypatch.setattr(Rank, "stack", stack)
    scene = (scene.stop(3) if fault == "frozen" else scene.hang(3)).until_found()
    if fault == "frozen":
        scene.until(lambda: scene.incident.phase is Phase.DETECTED)
        assert [each.ranks for each in scene.incident.stacks.failures()] == [(3,)]
    pid = int(scene.job.columns.pid_R[3])
    proposed = among(scene)["advice"]["steps"][0]
    assert proposed["host"] == "host-1"
    stuck = f"sudo cat /proc/{pid}/stack; py-spy dump --nonblocking --pid {pid}"
    assert proposed["command"] == (stuck if fault == "frozen" else f"py-spy dump --subprocesses --pid {pid}")
    assert proposed["text"].endswith("No stack of rank 3 was captured: take it on host-1 first.")


def test_a_stack_that_was_captured_needs_no_command() -> None:
    assert among(hung())["advice"]["steps"][0]["command"] == ""


def test_the_silent_host_of_an_incident_without_a_culprit_has_its_history() -> None:
    """Other jobs are heard from it, so that it is up, and leaving it out comes first once incidents repeat there."""
    quiet = Scene(8, hosts=2, job_id="quiet", on_hang="log").run(30).cut_host(1).run(25)
    assert not quiet.incident.culprits
    other = Scene(4, hosts=2, job_id="other").run(int(quiet.now - 1_000_000))
    first = among(quiet, other)
    assert (first["of_host"]["host"], first["of_host"]["text"]) == ("host-1", "")
    assert orders(first) == ["restart", "restart_excluding_node"]
    earlier = with_stacks("earlier", 3)
    again = among(quiet, earlier, other)
    assert again["of_host"]["text"].startswith("host-1 was named in 2 incidents (1 hang, 1 silent) of 2 jobs in 24 h, ")
    assert orders(again) == ["restart_excluding_node", "restart"]
    assert again["advice"]["orders"][0]["ranks"] == [4, 5, 6, 7]
    alone = among(quiet)["advice"]
    assert (orders(among(quiet)), alone["condition"]) == (["restart_excluding_node"], "if it is not up")


def test_a_crash_that_repeats_on_a_gpu_of_several_jobs_proposes_to_leave_its_host_out_and_to_check_it() -> None:
    scene = Scene(4, hosts=2, job_id="now").run(80)
    scene.crash(3, "RuntimeError: CUDA error: device-side assert triggered").run(1)
    earlier = Scene(4, hosts=2, job_id="earlier").run(30)
    earlier.crash(3, "RuntimeError: CUDA error: device-side assert triggered").run(1)
    jobs = {each.job.id: each.job for each in (scene, earlier)}
    found = among(scene, earlier)
    advised = found["advice"]
    assert (orders(found), advised["proposed"], advised["waits"]) == (["restart_excluding_node"], False, True)
    [look] = advised["steps"]
    assert look["text"].startswith("Check GPU 1 of host-1 for errors: the same error struck it in 2 jobs ")
    assert look["command"] == f"{host_commands.gpu('1')}; {host_commands.xid()}"
    assert notes(found) == f"After a restart without host-1: {ERROR_LEFT}."
    activity = HostActivity(jobs)
    sentence = "the launchers restart the ranks; meanwhile check GPU 1 of host-1 for errors"
    assert advised["text"] == f"Wait: {sentence}"
    node = one_node(list(jobs.values()), "host-1", scene.now, activity)
    assert node is not None
    [of_job] = [each for each in node["of_jobs"] if each["job"] == "now"]
    assert of_job["advice"] == advised
    alone = among(scene)
    assert (orders(alone), alone["advice"]["steps"]) == ([], [])


def test_once_launchers_are_late_the_restart_without_the_host_is_proposed_everywhere() -> None:
    scene = Scene(4, hosts=2, job_id="now").run(80)
    scene.crash(3, "RuntimeError: CUDA error: device-side assert triggered").run(1)
    earlier = Scene(4, hosts=2, job_id="earlier").run(30)
    earlier.crash(3, "RuntimeError: CUDA error: device-side assert triggered").run(1)
    jobs = {each.job.id: each.job for each in (scene, earlier)}
    activity, late = HostActivity(jobs), among(scene, earlier)["advice"]["until"] + 1.0
    advised = summary(scene.job, late, activity)["advice"]
    [order] = advised["orders"]
    assert (order["action"], order["ranks"], advised["proposed"]) == ("restart_excluding_node", [3], True)
    assert (advised["text"], advised["waits"]) == (RESTART, False)
    assert advised["steps"][0]["text"] == f"{RESTART}: {ERROR_LEFT}."
    node = one_node(list(jobs.values()), "host-1", late, activity)
    assert node is not None
    [of_job] = [each for each in node["of_jobs"] if each["job"] == "now"]
    assert of_job["advice"] == advised


def test_once_launchers_are_late_after_a_single_crash_their_log_is_read() -> None:
    scene = Scene(4, hosts=2, job_id="now").run(30)
    scene.crash(3, "ValueError: no data").run(1)
    due = among(scene)["advice"]["until"]
    assert summary(scene.job, due)["advice"]["waits"]
    assert summary(scene.job, due + 1.0)["advice"]["text"] == "Read the log of the launcher on host-1"


def test_ranks_that_do_not_report_after_a_restart_need_a_person_once_they_are_late() -> None:
    scene = Scene(4, hosts=2, job_id="now").run(30).hang(3).until_found()
    scene.until(lambda: scene.incident.phase is Phase.RECOVERING)
    scene.job.columns.reported_R[:] = False
    restarted = scene.incident.timeline.restarted
    assert restarted is not None
    scene.job.last_heard = due = among(scene)["advice"]["until"]
    assert due >= restarted + PATIENCE
    waits, late = (summary(scene.job, at)["advice"] for at in (due, due + 1.0))
    assert (waits["rule"], waits["waits"], waits["until"]) == ("first_report", True, due)
    assert waits["text"].endswith("were started again, and none has reported yet")
    assert (late["waits"], late["proposed"]) == (False, True)
    assert late["text"] == f"Read the logs of attempt {scene.job.attempt} and restart again"


def test_of_an_incident_that_is_over_its_suspect_host_is_still_to_be_looked_at() -> None:
    past = crashed("past", 3, 2)
    last = past.job.incidents[-1]
    found = of_host(past.job, last, past.now)
    assert found is not None
    assert found["suspect"] == "host-1 is suspect: check GPU 1 of host-1 for errors."
    later = of_host(past.job, last, past.now + 2 * WINDOW)
    assert later is not None
    assert later["suspect"] == ""


def test_its_twin_faults_of_another_gpu_in_other_jobs_stand_apart_from_an_incident_that_is_over() -> None:
    scene = Scene(4, hosts=2, job_id="now").run(60).hang(2)
    scene.until(lambda: scene.job.incidents and scene.incident.phase is Phase.CLOSED)
    others = [crashed("one", 3, 2), crashed("two", 3, 1)]
    activity = HostActivity({each.job.id: each.job for each in (scene, *others)})
    found = of_host(scene.job, scene.incident, scene.now, activity)
    assert found is not None
    assert found["suspect"] == "Apart from this hang, check GPU 1 of host-1 for errors."
    assert "3 crashes" in found["text"], "the crashes are counted in one of two sentences"


def test_crashes_that_repeat_in_one_job_offer_to_leave_the_host_out_and_wait() -> None:
    scene = crashed("now", 3, 1)
    scene.crash(3, "RuntimeError: CUDA error: device-side assert triggered").run(1)
    found = among(scene)
    assert (orders(found), found["advice"]["proposed"]) == (["restart_excluding_node"], False)
    assert found["advice"]["waits"]


@pytest.mark.parametrize(
    ("facts", "command", "where"),
    [
        ({"log": "/logs/train.err"}, "tail -n 200 /logs/train.err", ""),
        ({"rank_logs": "/logs"}, "readlink /proc/{pid}/fd/2", " (the command shows where it is)"),
        (
            {"scheduler": "slurm", "slurm_job_id": "7"},
            "scontrol show job 7 | grep -E 'StdOut|StdErr'",
            " (the command shows where it is)",
        ),
    ],
)
def test_the_log_of_the_launcher_that_restarts_has_the_command_that_shows_it(
    facts: dict[str, str], command: str, where: str
) -> None:
    scene = Scene(4, hosts=2, job_id="now", facts=facts).run(30)
    scene.crash(3, "RuntimeError: no").run(1)
    late = among(scene)["advice"]["otherwise"]
    [pid] = {n.registration.launcher_pid for n in scene.job.nodes.values() if n.registration.host == "host-1"}
    assert late["command"] == command.format(pid=pid)
    assert late["text"] == "If not by then, read the log of the launcher on host-1."
    assert bool(late["note"]) is bool(where)
