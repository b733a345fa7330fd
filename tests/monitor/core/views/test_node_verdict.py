"""Whether a node or one of its GPUs is at fault, over all jobs, and what to do about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from monitor.core.incident.test_exclusion import needing
from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, Cause, ProcessEventKind, ScoreReference
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import DeviceReading, RankReport
from rankwatch_monitor.core.incident import exclusion
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.plain import copied, plain
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views import rankings, responses
from rankwatch_monitor.core.views.digest import digest
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.core.views.host_history import WINDOW
from rankwatch_monitor.core.views.incident_view import of_host
from rankwatch_monitor.core.views.job_view import summary
from rankwatch_monitor.core.views.named_hosts import named_hosts
from rankwatch_monitor.core.views.node_view import glance, one_node, rows

NEEDED = (
    "First start a launcher on another node, or start the job again with fewer: without host-1, 1 of 2 nodes remain, "
    "and no spare; the job needs at least 2 (--nnodes)."
)
DRAIN = "scontrol update nodename=n7 state=drain reason='rankwatch: {}'"


def shown(host: str, *scenes: Scene) -> dict[str, Any]:
    now = max(scene.now for scene in scenes)
    for scene in scenes:
        scene.run(int(now - scene.now))
    found: dict[str, Any] = plain(one_node([scene.job for scene in scenes], host, now))
    return found


def crashed(job: str, rank: int, times: int, error: str = "CUDA error", after: int = 20) -> Scene:
    """A job of four ranks on two hosts of which one crashed several times, at first ``after`` so many seconds."""
    scene = Scene(4, hosts=2, job_id=job).run(after)
    for attempt in range(2, 2 + times):
        scene.die(rank, exit_code=1, message=error).run(1).event(ProcessEventKind.RESTARTING, attempt=attempt)
        scene.launch(attempt=attempt)
        scene.run(15)
    assert len(scene.job.incidents) == times
    return scene


def slow(scene: Scene, rank: int, host: str, device: str, cause: Cause = Cause.COMPUTE) -> Scene:
    scene.job.performance.stragglers.append(
        Straggler("s1", rank, host, device, cause, ScoreReference.ROBUST, "It is slow.", 5.0, 6.0, share=0.4)
    )
    return scene


def on_device(scene: Scene, rank: int, uuid: str) -> Scene:
    scene.ranks[rank].identity = scene.ranks[rank].identity._replace(device=uuid)
    return scene.run(2)


# One GPU --------------------------------------------------------------------------------------------------------------


def test_a_gpu_with_faults_in_several_jobs_is_named_with_the_command_to_check_it() -> None:
    three = slow(Scene(4, hosts=2).run(20), 3, "host-1", "host-1/1")
    found = shown("host-1", crashed("one", 3, 2), crashed("two", 3, 1), three)
    assert found["verdict"] == (
        "GPU 1 of host-1, rank 3: 3 crashes in 2 jobs, slow in 1. The error is the same each time."
    )
    assert found["presence"] == "Ranks report in 3 of 3 jobs."
    assert found["todo"] == {
        "text": (
            "Check GPU 1 of host-1 for errors; if it has any, or a job fails on it again, give host-1 no further job."
        ),
        "here": ["nvidia-smi -q -i 1 -d ECC,ROW_REMAPPER,CLOCK,PERFORMANCE,TEMPERATURE", "dmesg -T | grep -i xid"],
        "anywhere": [],
        "drain": [],
        "process": "",
    }
    assert found["state"] == "suspect"
    first, second = found["gpus"]
    assert (first["name"], first["faults"], first["slow"], first["history"]) == (
        "GPU 1", 3, 1, "3 crashes in 2 jobs, slow in 1",
    )  # fmt: skip
    assert [(each["rank"], each["state"]) for each in first["ranks"]] == [(3, "running")] * 3
    assert (second["name"], second["history"]) == ("GPU 0", "")


@pytest.mark.parametrize(
    ("cause", "where"),
    [
        (Cause.DATA, " in its input (not the GPU)"),
        (Cause.HOST, " in its host-side work (not the GPU)"),
        (Cause.COMMUNICATION, ""),
        (Cause.UNEXPLAINED, ""),
    ],
)
def test_a_rank_slow_by_another_cause_than_its_computation_is_no_fault_of_its_gpu(cause: Cause, where: str) -> None:
    three = slow(Scene(4, hosts=2).run(20), 3, "host-1", "host-1/1", cause)
    found = shown("host-1", crashed("one", 3, 2), three)
    assert found["verdict"] == "GPU 1 of host-1, rank 3: 2 crashes in 1 job. The error is the same each time."
    first = found["gpus"][0]
    assert (first["slow"], first["history"]) == (0, "2 crashes in 1 job")
    [now] = first["slow_now"]
    assert now["text"] == f"rank 3 is slow{where}"
    assert (now["job"], now["rank"], now["since"], now["by_gpu"]) == ("job", 3, 5.0, False)
    assert shown("host-1", three)["verdict"].startswith("host-1 has a slow rank in gpt (job)")


def test_the_place_of_a_crash_is_known_while_no_rank_runs_and_after_a_restart_of_the_monitor() -> None:
    scene = crashed("one", 3, 2)
    scene.die(3, exit_code=1, message="CUDA error").run(1)
    found = "GPU 1 of host-1, rank 3: 3 crashes in 1 job. "
    assert shown("host-1", scene)["verdict"].startswith(found)
    scene.reload()
    assert shown("host-1", scene)["verdict"].startswith(found)
    elsewhere = shown("host-0", scene)
    assert elsewhere["verdict"] == "Nothing points to a fault of this node."
    assert elsewhere["todo"] is None


def test_equal_faults_on_two_gpus_point_to_none_of_them() -> None:
    found = shown("host-1", crashed("one", 2, 1), crashed("two", 3, 1))
    assert found["verdict"] == "host-1 was named in 2 incidents of 2 jobs in 24 h; no single GPU stands out."
    assert found["todo"]["here"] == [
        "dmesg -T | grep -i xid",
        "nvidia-smi -q -d ECC,ROW_REMAPPER,CLOCK,PERFORMANCE,TEMPERATURE",
    ]


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_node_with_which_no_other_can_be_compared_is_no_suspect(hosts: int) -> None:
    jobs = []
    for name, rank in (("one", 0), ("two", 1)):
        scene = Scene(2 * hosts, hosts=hosts, job_id=name).run(20)
        jobs.append(scene.die(rank, exit_code=1, message="ValueError: bad shard").run(1))
    found = shown("host-0", *jobs)
    assert found["state"] == ("suspect" if hosts == 2 else "up")
    assert (found["todo"] is None) is (hosts == 1)
    activity = HostActivity({scene.job.id: scene.job for scene in jobs})
    history = activity.history("host-0", [], jobs[0].now)
    assert (len(history.about), history.repeats) == (2, hosts == 2)


def test_a_uuid_tells_gpus_of_one_local_rank_apart() -> None:
    """Two jobs share the node, each with one GPU visible, which is the first of both."""
    one, two = Scene(2, hosts=2, job_id="one").run(5), Scene(2, hosts=2, job_id="two").run(5)
    on_device(one, 1, "GPU-5c1f09ab-77")
    on_device(two, 1, "GPU-0d24e6cc-12")
    slow(one, 1, "host-1", "GPU-5c1f09ab-77")
    one.die(1, exit_code=1).run(1)
    found = shown("host-1", one, two)
    assert [(each["name"], each["uuid"], each["history"]) for each in found["gpus"]] == [
        ("GPU GPU-5c1f09ab", "GPU-5c1f09ab-77", "1 crash in 1 job, slow in 1"),
        ("GPU GPU-0d24e6cc", "GPU-0d24e6cc-12", ""),
    ]
    assert (
        found["todo"]["here"][0] == "nvidia-smi -q -i GPU-5c1f09ab-77 -d ECC,ROW_REMAPPER,CLOCK,PERFORMANCE,TEMPERATURE"
    )


# What its faults point to ---------------------------------------------------------------------------------------------


def hung(job: str, rank: int, **policy: Any) -> Scene:
    """A job of four ranks on two hosts in which one hangs."""
    return Scene(4, hosts=2, job_id=job, **policy).run(30).hang(rank)


def with_stacks(job: str, rank: int) -> Scene:
    scene = hung(job, rank)
    return scene.until(lambda: scene.job.incidents and scene.incident.stacks.groups() and scene.incident.culprits)


def view(*scenes: Scene) -> dict[str, Any]:
    """host-1, at the moment at which each scene is."""
    found: dict[str, Any] = plain(
        one_node([scene.job for scene in scenes], "host-1", max(scene.now for scene in scenes))
    )
    return found


def test_hangs_whose_stacks_read_input_point_to_storage_and_data_loader_and_not_to_the_gpu() -> None:
    doubtful = hung("doubtful", 3, section_timeouts={}, reports_durations=True)
    doubtful.until(lambda: doubtful.job.incidents and doubtful.job.incidents[0].culprits, within=400)
    assert not doubtful.incident.confirmed
    found = view(with_stacks("one", 3), with_stacks("two", 3), doubtful)
    assert found["verdict"] == "Rank 3 on host-1 hangs in load_batch: 2 hangs in 2 jobs, 1 suspected."
    assert found["counted"] == "2 incidents and 1 open suspicion"
    assert found["todo"]["text"] == (
        "Look at the storage and the data loader of host-1. It is the same rank in all 3 jobs: data or code may be the "
        "cause too."
    )
    assert found["todo"]["process"] == "rank 3 of one", "that of the last command"
    assert found["gpus"][0]["history"] == "rank 3 in load_batch (not the GPU): 2 hangs in 2 jobs, 1 suspected"
    df, iostat, py_spy = found["todo"]["here"]
    assert (df, iostat) == ("timeout 9 df -h", "iostat -xz 1 3")
    assert py_spy.startswith("py-spy dump --subprocesses --pid ")
    elsewhere = Scene(4, hosts=2, job_id="elsewhere").run(20)
    alone = view(with_stacks("one", 3), hung("none", 3, on_hang="log").until_found(), elsewhere)
    assert alone["verdict"].startswith("Rank 3 on host-1 hangs in load_batch: 2 hangs in 2 jobs. ")


def test_hangs_without_a_stack_are_captured_first() -> None:
    one, two = (hung(job, 3, observe_only=True).until_found() for job in ("one", "two"))
    found = view(one, two)
    assert found["verdict"] == "Rank 3 on host-1 hangs, and no stack shows where: 2 hangs in 2 jobs."
    assert found["todo"]["text"] == "Capture the stacks of one first: they show where rank 3 hangs."
    assert found["gpus"][0]["history"] == "rank 3: 2 hangs in 2 jobs"
    assert not any("nvidia-smi" in command for command in found["todo"]["here"])


def test_an_assertion_of_a_kernel_names_data_code_and_gpu_and_how_to_separate_them() -> None:
    error = "RuntimeError: CUDA error: device-side assert triggered"
    todo = shown("host-1", crashed("one", 3, 2, error), crashed("two", 3, 1, error))["todo"]
    assert todo["text"].startswith("one: Run again with CUDA_LAUNCH_BLOCKING=1 and look at the batch after step ")
    assert todo["text"].endswith("If another rank fails on GPU 1 too, it is the GPU: check it for errors.")
    assert todo["here"][0].startswith("nvidia-smi -q -i 1 ")
    elsewhere = shown("host-1", crashed("one", 3, 2, error), crashed("two", 3, 1, error, after=70))["todo"]
    assert elsewhere["here"] == todo["here"]
    assert elsewhere["text"] == (
        "Check GPU 1 of host-1 for errors: the same error struck it in 2 jobs after different steps, so one bad "
        "batch does not explain it. If it has none, run again with CUDA_LAUNCH_BLOCKING=1."
    )


@pytest.mark.parametrize(
    ("error", "text", "command"),
    [
        ("ValueError: loss is nan", "one: Read the traceback of rank 3 ", ""),
        ("CUDA out of memory", "one: See what holds the memory of GPU 1", "nvidia-smi -i 1 --query-compute-apps"),
        ("NCCL error", "Look at the network of host-1: ", "ip -s link"),
    ],
)
def test_crashes_point_to_what_their_error_does(error: str, text: str, command: str) -> None:
    todo = shown("host-1", crashed("one", 3, 2, error), crashed("two", 3, 1, error))["todo"]
    assert todo["text"].startswith(text)
    assert todo["text"].endswith(" It is the same rank in both jobs: data or code may be the cause too.")
    assert " ".join(todo["here"]).startswith(command)
    assert bool(todo["here"]) is bool(command)


# The node -------------------------------------------------------------------------------------------------------------


def test_suspicions_and_quiet_hosts_are_about_a_node_and_do_not_name_it() -> None:
    hung = Scene(4, hosts=2, job_id="hung", on_hang="log").run(40).hang(2).until_found()
    doubtful = Scene(4, hosts=2, job_id="doubtful", section_timeouts={}, reports_durations=True).run(40)
    doubtful.hang(2)
    doubtful.until(lambda: doubtful.job.open_incident is not None, within=400)
    assert not doubtful.incident.confirmed
    jobs, now = [hung.job, doubtful.job], min(hung.now, doubtful.now)
    found = one_node(jobs, "host-1", now)
    assert found is not None
    assert {each["job"]: each["named_as"] for each in found["incidents"]} == {"hung": "culprit", "doubtful": "suspect"}
    assert found["verdict"] == "host-1 was named in 1 incident and 1 open suspicion of 2 jobs in 24 h."
    [row] = named_hosts(jobs, now)
    [on_map] = [each for each in rows(glance(jobs, now))["hosts"] if each[0] == "host-1"]
    assert found["named_by"] == row["incidents"] == on_map[3] == 1, "the same on the page of the node, in list and map"


def test_a_host_has_one_count_of_incidents_in_all_places_also_of_jobs_in_which_it_is_silent() -> None:
    quiet = Scene(4, hosts=2, job_id="quiet", on_hang="log").run(30).cut_host(1).run(25)
    jobs = [each.job for each in (with_stacks("one", 3), with_stacks("two", 3), quiet)]
    count, kinds = "3 incidents", "2 hangs, 1 silent"
    found = one_node(jobs, "host-1", quiet.now)
    assert found is not None
    assert found["counted"] == f"{count} ({kinds})"
    [row] = [each for each in named_hosts(jobs, quiet.now) if each["host"] == "host-1"]
    assert row["gpu"] == "rank 3 in load_batch: 2 hangs in 2 jobs"
    beside = of_host(jobs[0], jobs[0].incidents[0], quiet.now, HostActivity({job.id: job for job in jobs}))
    assert beside is not None
    assert f" {count} of 3 jobs " in beside["text"]
    assert kinds not in beside["text"], "the place where the hangs were has their count"
    told = digest(jobs, 0.0, quiet.now, 0.0, stored=True)["lines"]
    [node] = next(line["links"] for line in told if line["kind"] == "nodes")
    assert node.text.startswith(f"host-1: {count}; ")


def test_a_host_whose_gpu_stands_out_is_also_silent_in_a_job() -> None:
    silent = Scene(4, hosts=2, job_id="silent", on_hang="log").run(30).cut_host(1).run(120)
    others = [crashed("one", 3, 2), crashed("two", 3, 1)]
    for scene in others:
        scene.run(int(silent.now - scene.now))
    found = view(*others, silent)["verdict"]
    assert found.startswith("GPU 1 of host-1, rank 3: 3 crashes in 2 jobs.")
    assert f"host-1 is silent in {silent.job.name} (silent)." in found


def test_a_node_from_which_nothing_comes_may_be_down() -> None:
    quiet = Scene(4, hosts=2, job_id="quiet", on_hang="log").run(30).cut_host(1).run(25)
    found = shown("host-1", quiet)
    assert [each["named_as"] for each in found["incidents"]] == ["quiet"]
    assert found["incidents"][0]["headline"].startswith("Node host-1 has not been heard; ")
    assert found["verdict"] == "host-1 is silent in 1 job, and nothing reports from it: it may be down."
    todo = {"text": "See whether the node answers.", "here": [], "anywhere": ["ping -c 3 -- host-1"], "drain": []}
    assert (found["state"], found["todo"]) == ("may be down", {**todo, "process": ""})


def test_a_node_that_other_jobs_hear_is_up_and_its_silent_processes_are_looked_at() -> None:
    quiet = Scene(4, hosts=2, job_id="quiet", on_hang="log").run(30).cut_host(1).run(25)
    lost = Scene(4, hosts=2, job_id="lost").run(9).cut_host(0).cut_host(1)
    found = shown("host-1", quiet, lost, Scene(4, hosts=2, job_id="fine").run(400))
    title = f"{quiet.job.name} (quiet)"
    assert found["presence"] == (f"Ranks report in 1 of 3 jobs; it is silent in {title}; 1 job is lost, on all nodes.")
    assert found["todo"]["text"] == f"The node is up: see whether the processes of {title} still run there."
    assert found["todo"]["here"][0].startswith("ps -o pid,stat,etime,wchan:24,args -p ")
    assert (found["todo"]["process"], found["state"]) == ("ranks of quiet", "partly silent")


def test_a_job_that_is_restarted_is_neither_silent_nor_missing() -> None:
    scene = Scene(4, hosts=2, job_id="again").run(20)
    scene.die(2, exit_code=1).run(1).event(ProcessEventKind.RESTARTING, attempt=2)
    scene.launch(attempt=2)
    fine = Scene(4, hosts=2, job_id="fine").run(22)
    found = one_node([scene.job, fine.job], "host-1", scene.now)
    assert found is not None
    assert found["presence"] == (f"Ranks report in 1 of 2 jobs; {scene.job.name} (again) is being restarted.")


def test_a_reading_has_its_time_and_the_newest_of_a_gpu_counts() -> None:
    one, two = Scene(4, hosts=2, job_id="one").run(20), Scene(4, hosts=2, job_id="two").run(20)
    for scene, temperature, at in ((two, 70.0, 18.0), (one, 60.0, 12.0)):
        device = DeviceReading(temperature=temperature)
        apply(scene.job, RankReport(scene.ranks[3].identity, device=device), scene.now - 20 + at)
    [gpu] = [each for each in shown("host-1", one, two)["gpus"] if each["name"] == "GPU 1"]
    assert (gpu["reading"]["temperature"], gpu["reading"]["at"]) == (70.0, two.now - 2.0)


def test_one_incident_is_no_fault_of_the_node_and_none_points_to_nothing() -> None:
    hung = Scene(4, hosts=2, on_hang="log").run(20).hang(2).until_found()
    alone = "host-1 was named in 1 incident of 1 job in 24 h: one job alone is no sign of a fault of the node."
    found = shown("host-1", hung)
    assert found["verdict"] == alone
    assert found["todo"] is None, "its job has the advice"
    healthy = shown("host-0", hung)
    assert healthy["verdict"] == "Nothing points to a fault of this node."
    single = shown("host-0", Scene(4, on_hang="log").run(20).hang(2).until_found())
    once = "it was named in 1 incident of 1 job in 24 h, and no job runs on another one"
    assert single["verdict"] == f"Nothing points to a fault of this node: {once}."
    assert (healthy["todo"], healthy["of_jobs"], healthy["incidents"]) == (None, [], [])
    assert (found["state"], healthy["state"]) == ("up", "up")


def test_a_slow_rank_counts_and_an_order_does_not() -> None:
    scene = slow(Scene(4, hosts=2).run(20), 3, "host-1", "host-1/1")
    scene.order(Action.CAPTURE)
    found = shown("host-1", scene)
    assert found["verdict"].startswith("host-1 has a slow rank in gpt (job)")
    assert found["incidents"] == []


def test_the_page_of_the_node_of_a_slow_rank_proposes_what_its_job_does() -> None:
    scene = slow(Scene(4, hosts=2).run(20), 3, "host-1", "host-1/1")
    scene.job.performance.stragglers[-1].share = 0.6
    healthy = Scene(4, hosts=2, job_id="fine").run(20)
    [found] = shown("host-1", scene, healthy)["of_jobs"]
    advised = summary(scene.job, scene.now)["advice"]
    assert (found["job"], found["advice"], advised["rule"]) == (scene.job.id, advised, "slow_rank")
    assert found["remaining"] == copied(responses.Remaining, exclusion.Remaining(1, 2, 0))
    assert shown("host-0", scene, healthy)["of_jobs"] == []
    needing(scene, 2)
    [found] = shown("host-1", scene, healthy)["of_jobs"]
    assert (found["advice"]["orders"], found["remaining"]) == ([], None)
    assert found["advice"]["steps"][1]["text"] == f"If it stays slow, {NEEDED[0].lower()}{NEEDED[1:]}"
    scene.job.policy = replace(scene.job.policy, observe_only=True)
    [found] = shown("host-1", scene, healthy)["of_jobs"]
    assert len(found["advice"]["steps"]) == 1


def test_a_slow_rank_stands_with_the_incidents_of_its_host_in_all_jobs() -> None:
    scene = slow(Scene(4, hosts=2).run(20), 3, "host-1", "host-1/1")
    jobs = [scene.job, crashed("one", 3, 2).job, crashed("two", 3, 1).job]

    def of_host(*known: Job) -> Any:
        found = rankings.live_view(scene.job, scene.now, HostActivity({job.id: job for job in known}))
        assert found is not None
        return found["of_host"]

    assert of_host(*jobs) == {"host": "host-1", "text": "host-1 was named in 3 incidents of 2 jobs in 24 h."}
    assert of_host(scene.job) is None
    scene.job.performance.stragglers[-1].host = ""
    assert of_host(*jobs) is None


@pytest.mark.parametrize("silent", [False, True])
def test_the_commands_are_safe_to_paste_and_drain_where_slurm_runs(silent: bool) -> None:
    scene = crashed("one", 3, 2)
    for node in scene.job.nodes.values():
        object.__setattr__(node.registration, "facts", {"slurm_node": "n7"})
    if silent:
        scene.cut_host(0).cut_host(1).run(120)
    found = shown("host-1", scene)
    if silent:
        assert found["todo"]["anywhere"] == ["ping -c 3 -- host-1"]
        assert found["todo"]["drain"] == [DRAIN.format("not heard")]
    else:
        assert found["todo"]["drain"] == [DRAIN.format("GPU 1, rank 3: 2 crashes in 1 job")]
    assert found["commands"][-1:] == found["todo"]["drain"]


@pytest.mark.parametrize(
    ("facts", "drain"),
    [
        ({"scheduler": "kubernetes", "kubernetes_node": "n7;reboot"}, ["kubectl cordon 'n7;reboot'"]),
        ({"scheduler": "kubernetes", "kubernetes_pod": "gpt-0"}, []),
        ({}, []),
    ],
)
def test_a_node_is_cordoned_where_kubernetes_names_it(facts: dict[str, str], drain: list[str]) -> None:
    scene = crashed("one", 3, 2)
    for node in scene.job.nodes.values():
        object.__setattr__(node.registration, "facts", facts)
    assert shown("host-1", scene)["todo"]["drain"] == drain


def test_a_job_that_can_go_on_without_the_node_is_offered() -> None:
    scene = Scene(4, hosts=2, job_id="one", on_hang="log").run(20).hang(2).until_found()
    [offered] = shown("host-1", scene)["of_jobs"]
    assert (offered["job"], offered["name"], leaving_out(offered)) == ("one", scene.job.name, (True, False))
    restarted = Scene(4, hosts=2, job_id="restarted").run(20).hang(2)
    restarted.until(lambda: restarted.state == "restarting")
    suspected = Scene(4, hosts=2, job_id="undecided", section_timeouts={}, reports_durations=True).run(20).hang(2)
    suspected.until(lambda: suspected.job.open_incident is not None, within=400)
    jobs, now = [restarted.job, suspected.job], min(restarted.now, suspected.now)
    found = one_node(jobs, "host-1", now)
    assert found is not None
    offers = {each["job"]: leaving_out(each) for each in found["of_jobs"]}
    assert offers == {"undecided": (True, False), "restarted": (False, False)}, "one is being restarted already"
    fixed = Scene(4, hosts=2, on_hang="log", max_restarts=0).run(20).hang(2).until_found()
    assert [leaving_out(each) for each in shown("host-1", fixed)["of_jobs"]] == [(False, False)]


def leaving_out(of_job: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the restart without the node may be ordered, and is what is proposed."""
    advised = of_job["advice"]
    actions = [order["action"] for order in advised["orders"]]
    assert (Action.RESTART_EXCLUDING_NODE in actions) is (of_job["remaining"] is not None)
    return of_job["remaining"] is not None, advised["proposed"] and actions[0] == Action.RESTART_EXCLUDING_NODE


def test_the_restart_without_the_node_is_recommended_where_incidents_repeat() -> None:
    one, two = (Scene(4, hosts=2, job_id=name, on_hang="log").run(20).hang(2).until_found() for name in ("one", "two"))
    activity = HostActivity({scene.job.id: scene.job for scene in (one, two)})
    found = one_node([one.job, two.job], "host-1", one.now, activity)
    assert found is not None
    assert [leaving_out(each) for each in found["of_jobs"]] == [(True, True)] * 2
    assert [leaving_out(each) for each in shown("host-1", one)["of_jobs"]] == [(True, False)]


def test_a_job_that_is_restarted_is_waited_for_until_a_time() -> None:
    scene = Scene(4, hosts=2, job_id="again").run(20).die(2, exit_code=1).run(1)
    [found] = shown("host-1", scene)["of_jobs"]
    advised = found["advice"]
    assert (advised["rule"], advised["waits"]) == ("launchers_restart", True)
    assert advised["until"] > scene.now
    assert advised["runbook"] == "runbook.html#rankwatchjobfailed"


def test_a_failed_job_is_launched_again_without_the_node_of_its_culprit() -> None:
    scene = crashed("failed", 3, 2)
    scene.die(3, exit_code=1, message="CUDA error").run(1)
    why = "rank 3 on host-1 exited with code 1: CUDA error; all 2 restarts are used up (--max-restarts)"
    scene.finish(ProcessEventKind.FAILED, why)
    [found] = view(scene)["of_jobs"]
    assert found["advice"]["steps"][-1]["text"] == (
        "Launch again without host-1: if rank 3 fails again, suspect data or code; if not, host-1."
    )
    assert found["advice"]["runbook"] == "runbook.html#rankwatchjobfailed"
    other = one_node([scene.job], "host-0", scene.now)
    late = one_node([scene.job], "host-1", scene.now + WINDOW + 1)
    assert other is not None
    assert late is not None
    assert other["of_jobs"] == late["of_jobs"] == []
