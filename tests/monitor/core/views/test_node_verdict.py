"""Whether a node is at fault, over all jobs, and what to do about it."""

from __future__ import annotations

from typing import Any

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, Cause, ScoreReference
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views.node_view import one_node


def shown(host: str, *scenes: Scene) -> dict[str, Any]:
    found = one_node([scene.job for scene in scenes], host, max(scene.now for scene in scenes))
    assert found is not None
    return found


def test_culprits_suspects_and_quiet_hosts_are_all_named() -> None:
    hung = Scene(4, hosts=2, job_id="hung", on_hang="log").run(40).hang(2).until_found()
    quiet = Scene(4, hosts=2, job_id="quiet", on_hang="log").run(30).cut_host(1).run(25)
    doubtful = Scene(4, hosts=2, job_id="doubtful", section_timeouts={}, reports_durations=True).run(40)
    doubtful.hang(2)
    doubtful.until(lambda: doubtful.job.open_incident is not None, within=400)
    assert not doubtful.incident.confirmed
    quiet_alone = one_node([quiet.job], "host-1", quiet.now)
    assert quiet_alone is not None
    assert [each["named_as"] for each in quiet_alone["incidents"]] == ["quiet"]
    assert quiet_alone["incidents"][0]["headline"].startswith("Node host-1 has not been heard since ")
    assert quiet_alone["verdict"] == "host-1 was named in 1 of 1 job, is silent in 1: check it before anything else."
    found = one_node([hung.job, doubtful.job], "host-1", min(hung.now, doubtful.now))
    assert found is not None
    assert {each["job"]: each["named_as"] for each in found["incidents"]} == {"hung": "culprit", "doubtful": "suspect"}
    assert found["verdict"].startswith("host-1 was named in 2 of 2 jobs")
    assert found["verdict"].endswith(": check it before anything else.")
    assert found["named_by"] == 2


def test_one_incident_is_no_fault_of_the_node_and_none_points_to_nothing() -> None:
    hung = Scene(4, hosts=2, on_hang="log").run(20).hang(2).until_found()
    alone = "host-1 was named in 1 of 1 job; one job alone is no sign of a fault of the node."
    assert shown("host-1", hung)["verdict"] == alone
    healthy = shown("host-0", hung)
    assert healthy["verdict"] == "Nothing points to a fault of this node."
    assert (healthy["commands"], healthy["exclude"], healthy["incidents"]) == ([], None, [])


def test_a_slow_rank_counts_and_an_order_does_not() -> None:
    scene = Scene(4, hosts=2).run(20)
    scene.job.performance.stragglers.append(
        Straggler("s1", 3, "host-1", "0", Cause.DATA, ScoreReference.ROBUST, "Its input is slow.", 5.0, 6.0, share=0.4)
    )
    scene.order(Action.CAPTURE)
    found = shown("host-1", scene)
    assert found["verdict"].startswith("host-1 has a slow rank in 1 of 1 job")
    assert found["incidents"] == []


def test_the_commands_are_safe_to_paste_and_drain_where_slurm_runs() -> None:
    scene = Scene(4, hosts=2, on_hang="log").run(20).hang(2).until_found()
    assert shown("host-1", scene)["commands"] == ["ping -c 3 -- host-1"]
    for node in scene.job.nodes.values():
        object.__setattr__(node.registration, "facts", {"slurm_node": "n7;reboot"})
    drain = "scontrol update nodename='n7;reboot' state=drain reason=rankwatch"
    assert shown("host-1", scene)["commands"] == ["ping -c 3 -- host-1", drain]


def test_a_job_that_can_go_on_without_the_node_is_offered() -> None:
    scene = Scene(4, hosts=2, job_id="one", on_hang="log").run(20).hang(2).until_found()
    assert shown("host-1", scene)["exclude"] == {"job": "one", "name": scene.job.name, "ranks": [2]}
    fixed = Scene(4, hosts=2, on_hang="log", max_restarts=0).run(20).hang(2).until_found()
    assert shown("host-1", fixed)["exclude"] is None
