"""A host that is quiet while others wait leads before its silence is certain; in healthy jobs none is quiet."""

from __future__ import annotations

from dataclasses import replace

from monitor.core.incident.test_exclusion import needing
from monitor.core.scene import Scene
from monitor.core.views.test_node_verdict import NEEDED
from rankwatch.contract.enums import RankState
from rankwatch_monitor.core.plain import copied
from rankwatch_monitor.core.views import job_view, responses
from rankwatch_monitor.core.views.headline import LONGEST, headline
from rankwatch_monitor.core.views.quiet_host import quiet_host
from rankwatch_monitor.core.views.stack_errors import stack_errors


def test_a_quiet_host_leads_before_the_limit_of_silence_and_its_ranks_do_not_report() -> None:
    scene = Scene(8, hosts=2, on_hang="log").run(30).cut_host(1)
    cut = scene.now
    scene.run(25)
    quiet = quiet_host(scene.job, scene.now)
    assert quiet is not None
    assert (quiet.hosts, quiet.ranks, quiet.limit) == (("host-1",), (4, 5, 6, 7), 60.0)
    assert abs(quiet.since - cut) <= 1.0
    shown = job_view.summary(scene.job, scene.now)
    assert shown["headline"].startswith("Node host-1 has not been heard; ")
    assert shown["headline"].endswith("; its 4 ranks and its launcher are silent")
    assert len(shown["headline"]) <= LONGEST
    assert (quiet.launchers, quiet.excludable, quiet.command) == (1, True, "ping -c 3 -- host-1")
    assert shown["quiet_host"] == copied(responses.QuietHost, quiet)
    assert shown["ranks_reporting"] == 4
    assert [scene.rank_state(rank) for rank in (3, 4, 7)] == [RankState.WAITING, RankState.SILENT, RankState.SILENT]


def test_a_host_whose_silence_is_certain_is_named_by_the_incident() -> None:
    scene = Scene(8, hosts=2, on_hang="log").run(30).cut_host(1).run(70)
    assert quiet_host(scene.job, scene.now) is None
    assert job_view.summary(scene.job, scene.now)["headline"] == headline(scene.incident)
    assert scene.rank_state(4) is RankState.SILENT


def test_ranks_named_as_silent_stay_silent_while_the_others_fall_silent_too() -> None:
    scene = Scene(8, hosts=2, on_hang="log").run(30).cut_host(1).run(70).cut_host(0)
    states = set()
    for _ in range(100):  # past the time after which the whole job is lost
        scene.run(1)
        states.add(scene.rank_state(4))
        assert job_view.summary(scene.job, scene.now)["ranks_reporting"] == (0 if scene.state == "lost" else 4)
    assert scene.state == "lost"
    assert states == {RankState.SILENT}


def test_no_host_is_quiet_where_all_report_or_none_does() -> None:
    hang = Scene(8, hosts=2, on_hang="log").run(30).hang(1).run(25)
    assert hang.job.open_incident is not None
    assert quiet_host(hang.job, hang.now) is None
    both = Scene(8, hosts=2, on_hang="log").run(30).cut_host(0).cut_host(1).run(40)
    assert quiet_host(both.job, both.now) is None
    healthy = Scene(8, hosts=2).run(30)
    assert job_view.summary(healthy.job, healthy.now)["quiet_host"] is None


def test_a_host_whose_launcher_reports_is_not_quiet() -> None:
    scene = Scene(8, hosts=2, on_hang="log").run(30).cut(4, 5, 6, 7).hang(1).run(25)
    assert scene.job.open_incident is not None
    assert quiet_host(scene.job, scene.now) is None


def test_a_restart_without_a_quiet_host_is_offered_only_where_it_is_permitted() -> None:
    for policy in ({"observe_only": True}, {"max_restarts": 0}):
        scene = Scene(8, hosts=2, on_hang="log", **policy).run(30).cut_host(1).run(25)
        quiet = quiet_host(scene.job, scene.now)
        assert quiet is not None
        assert not quiet.excludable
        assert any("(observe_only)" in note for note in quiet.notes) is ("observe_only" in policy)


def test_a_quiet_host_that_the_job_needs_is_not_left_out_before_another_comes() -> None:
    for least in (1, 2):
        scene = needing(Scene(8, hosts=2, on_hang="log").run(30), least).cut_host(1).run(25)
        quiet = quiet_host(scene.job, scene.now)
        assert quiet is not None
        assert quiet.excludable is (least == 1)
        assert (NEEDED in quiet.notes) is (least == 2)


def test_quiet_hosts_are_left_out_together_or_not_at_all() -> None:
    for least in (3, 4):
        scene = needing(Scene(10, hosts=5, on_hang="log").run(30), least).cut_host(1).cut_host(2).run(25)
        quiet = quiet_host(scene.job, scene.now)
        assert quiet is not None
        assert (len(quiet.hosts), quiet.excludable) == (2, least == 3)
        assert any("without these 2 nodes, 3 of 5 nodes remain" in note for note in quiet.notes) is (least == 4)


def test_under_slurm_the_command_asks_the_controller_too() -> None:
    scene = Scene(8, hosts=2, on_hang="log").run(30)
    for node in scene.job.nodes.values():
        node.registration = replace(node.registration, facts={"scheduler": "slurm"})
    scene.cut_host(1).run(25)
    quiet = quiet_host(scene.job, scene.now)
    assert quiet is not None
    assert quiet.command == "ping -c 3 -- host-1; sinfo -n host-1"


def test_ranks_of_a_host_that_did_not_answer_the_capture_have_that_as_the_reason() -> None:
    scene = Scene(8, hosts=2, on_hang="log").run(30).cut_host(1).run(25)
    assert [group.ranks for group in scene.incident.stacks.groups()] == [(0, 1, 2, 3)]
    assert stack_errors(scene.job, scene.incident) == [
        {"rank": rank, "error": "host-1 did not answer the capture", "process_state": ""} for rank in (4, 5, 6, 7)
    ]
    both = Scene(8, hosts=2, on_hang="log").run(30).hang(1).run(25)
    assert both.incident.timeline.captured is not None
    assert stack_errors(both.job, both.incident) == []
    crash = Scene(8, hosts=2).run(30).die(1, exit_code=1, message="CUDA error").run(1)
    assert stack_errors(crash.job, crash.incident) == [], "no capture was ordered"
