"""What to do about a job that failed or is lost, step by step, with commands to copy."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from monitor.core.views.test_ended import ASSERT, crashed_again, failed
from rankwatch.contract.messages import NodeRegistration
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.views import host_commands, job_view
from rankwatch_monitor.core.views.host_activity import HostActivity

SLURM = {"scheduler": "slurm", "slurm_job_id": "4711"}
POD = {"scheduler": "kubernetes", "kubernetes_namespace": "ml", "kubernetes_pod": "gpt-0"}


def steps(scene: Scene) -> list[dict[str, str]]:
    advice = job_view.summary(scene.job, scene.now)["advice"]
    return advice["steps"] if advice else []


def registered(scene: Scene, facts: dict[str, str]) -> Scene:
    """The launchers of a scene with facts about their scheduler."""
    for node in scene.nodes:
        host = node.replace("node", "host")
        apply(scene.job, NodeRegistration(node, host, 10, 2, "gpt", attempt=1, facts=facts), scene.now)
    return scene


@pytest.mark.parametrize(
    ("facts", "command"),
    [
        (SLURM, "squeue -j 4711; sacct -j 4711 -X -o State,ExitCode,End,NodeList"),
        ({"scheduler": "slurm"}, "squeue --me"),
        (POD, "kubectl get pods -n ml gpt-0 -o wide"),
        ({"scheduler": "kubernetes"}, "kubectl get pods -o wide"),
        ({}, "ssh host-0 ps -o pid,etime,args -p 10; ssh host-1 ps -o pid,etime,args -p 10"),
    ],
)
def test_whether_a_lost_job_still_runs_is_shown_by_a_command(facts: dict[str, str], command: str) -> None:
    scene = registered(Scene(4, hosts=2).run(20), facts).cut_host(0).cut_host(1).run(200)
    assert [step["command"] for step in steps(scene)] == [command, "", ""]
    first, second, last = (step["text"] for step in steps(scene))
    assert ("The command shows its launchers." in first) is command.startswith("ssh")
    assert second == (
        "If it does, look for what keeps its reports from the monitor: its 4 ranks and 2 launchers fell silent within "
        "1 s of one another, which suggests one cause."
    )
    assert last == "If it does not, launch it again."


def test_whether_a_node_of_a_lost_job_reaches_the_monitor_is_shown_by_a_command() -> None:
    facts = {**SLURM, "monitor": "http://monitor:8421/watch;x"}
    scene = registered(Scene(4, hosts=2).run(20), facts).cut_host(0).cut_host(1).run(200)
    step = steps(scene)[1]
    assert (step["command"], step["host"]) == ("curl -sS -m 9 'http://monitor:8421/watch;x/readyz'", "host-0")
    assert step["text"].endswith(", which suggests one cause. The command shows whether host-0 reaches it.")


def test_a_lost_job_whose_hosts_fell_silent_one_by_one_is_called_so() -> None:
    scene = Scene(4, hosts=2, on_hang="log", silence_timeout=60.0).run(20).cut_host(0).run(40).cut_host(1).run(200)
    assert steps(scene)[1]["text"].endswith(": its 4 ranks and 2 launchers fell silent one after another, over 40 s.")


def test_nodes_of_a_lost_job_that_other_jobs_are_heard_from_are_up() -> None:
    lost = Scene(4, hosts=2, job_id="lost").run(20).cut_host(0).cut_host(1).run(200)
    others = [Scene(4, hosts=hosts, job_id=f"other-{n}").run(220) for n, hosts in enumerate((2, 1))]

    def first(*scenes: Scene) -> str:
        activity = HostActivity({scene.job.id: scene.job for scene in scenes})
        found: str = job_view.summary(lost.job, lost.now, activity)["advice"]["steps"][0]["text"]
        return found

    assert first(lost, *others) == (
        "Check whether the job still runs: host-0 reports in 2 other jobs and host-1 reports in 1 other job, so these "
        "nodes are up; look at this job and its network. The command shows its launchers."
    )
    assert first(lost, others[1]).endswith(
        "host-0 reports in 1 other job, so the node is up; look at this job and its network. "
        "The command shows its launchers."
    )
    assert first(lost) == "Check whether the job still runs. The command shows its launchers."


def test_a_crash_that_came_again_has_steps_that_separate_rank_and_host() -> None:
    read, look, launch = steps(registered(crashed_again(4), SLURM))
    assert read["text"].startswith("Read what rank 2 logged around step ")
    assert read["command"] == "scontrol show job 4711 | grep -E 'StdOut|StdErr'"
    assert (look["host"], look["command"]) == (
        "host-1",
        "nvidia-smi -q -i 0 -d ECC,ROW_REMAPPER,CLOCK,PERFORMANCE,TEMPERATURE; dmesg -T | grep -i xid",
    )
    assert launch["text"].startswith("Launch again without host-1: ")
    *_, launch = steps(crashed_again(2, hosts=1))
    assert launch["text"].startswith("Launch again on another node: ")


def test_a_single_crash_is_read_looked_into_by_its_error_and_mended() -> None:
    scene = failed("all 3 restarts are used up (--max-restarts)")
    read, look, mend = steps(scene)
    assert look["text"] == "Check GPU 0 on host-1 for errors."
    assert read["text"] == "Read what rank 2 logged, in the output of the launcher on host-1."
    assert mend["text"] == "Remove the cause, then launch the job again."


def test_a_failed_job_has_the_line_that_launches_it_again() -> None:
    line = "cd /srv && rankwatch run --nproc-per-node 2 train.py"
    scene = failed("all 3 restarts are used up (--max-restarts)")
    for node in scene.nodes:
        registration = NodeRegistration(node, node.replace("node", "host"), 10, 2, "gpt", attempt=1, launch=line)
        apply(scene.job, registration, scene.now)
    last = steps(scene)[-1]
    assert (last["command"], last["host"], last["note"] != "") == (line, "host-0", True)
    last = steps(registered(failed("all 3 restarts are used up (--max-restarts)"), SLURM))[-1]
    assert (last["command"], last["host"]) == ("sacct -j 4711 -X -n -P -o WorkDir,SubmitLine", "")
    assert steps(failed("all 3 restarts are used up (--max-restarts)"))[-1]["command"] == ""


def test_a_job_that_runs_has_no_steps() -> None:
    assert steps(Scene(4).run(20)) == []


def test_names_of_launchers_are_quoted() -> None:
    assert host_commands.still_runs({}, "a; rm b", 7) == "ssh 'a; rm b' ps -o pid,etime,args -p 7"
    assert host_commands.log({**POD, "kubernetes_pod": "a b"}) == "kubectl logs -n ml 'a b' --tail 200"
    assert host_commands.log({}) == ""


def test_where_one_error_strikes_a_gpu_in_several_jobs_it_is_checked_before_data_and_code() -> None:
    scene = crashed_again(4, checkpoint=15, error=ASSERT)
    other = Scene(4, hosts=2, job_id="other").run(60)
    other.crash(2, ASSERT).run(1)
    jobs = {each.job.id: each.job for each in (scene, other)}
    found = job_view.summary(scene.job, scene.now, HostActivity(jobs))["advice"]["steps"]
    [place] = [n for n, step in enumerate(found) if step["text"].startswith("Check GPU 0 of host-1 for errors: ")]
    assert found[place]["text"].endswith(": the same error struck it in 2 jobs after different steps.")
    assert (found[place]["command"], found[place]["host"]) == (
        f"{host_commands.gpu('0')}; {host_commands.xid()}",
        "host-1",
    )
    assert "CUDA_LAUNCH_BLOCKING" in " ".join(step["text"] for step in found[place + 1 :])
    assert len(found) == len(steps(scene)) + 1, "of one job alone, data and code come first"
