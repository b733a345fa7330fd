"""One message that claims another attempt hides no job."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import JobState, NodeRole, ProcessEventKind
from rankwatch.contract.messages import NodeObservation, NodeRegistration
from rankwatch_monitor.core import attempts, liveness
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.core.job import Job, Node
from rankwatch_monitor.core.views import verdict

FORGED = 10**15


def forge(scene: Scene, attempt: int = FORGED, rank: int = 0) -> None:
    identity = RankIdentity("job", rank, world_size=1, attempt=attempt, host="x", instance="forged")
    apply(scene.job, RankReport(identity, iteration=1), scene.now)


def found_afterwards(scene: Scene) -> None:
    """Run on in good health, then hang: the culprit is found."""
    scene.run(15)
    assert scene.state == "running"
    scene.hang(2).until(lambda: scene.job.open_incident is not None, within=60)
    assert set(scene.blamed) == {2}


# Reports of ranks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", [2, FORGED])
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_report_of_a_higher_attempt_does_not_blind_a_job_that_launchers_run(attempt: int, hosts: int) -> None:
    scene = Scene(hosts=hosts, on_hang="log").run(10)
    forge(scene, attempt)
    assert scene.job.attempt == 1
    assert scene.job.stale.count == 1
    found_afterwards(scene)


def test_ranks_that_report_before_their_launchers_look_at_one_launcher_each(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(hosts=64, on_hang="log").run(2)
    looked, silent = [0], liveness.node_silent

    def counted(job: Job, node: Node) -> bool:
        looked[0] += 1
        return silent(job, node)

    monkeypatch.setattr(liveness, "node_silent", counted)
    for rank in range(10):
        forge(scene, 2, rank)
    assert scene.job.attempt == 1
    assert looked[0] == 10


@pytest.mark.parametrize("attempt", [1, FORGED])
def test_a_report_of_a_higher_attempt_blinds_a_job_without_launchers_for_seconds_at_most(attempt: int) -> None:
    scene = Scene(launchers=False).run(10)
    forge(scene, attempt)
    scene.run(5)
    assert scene.job.attempt == 0
    assert scene.job.world_size == 4
    found_afterwards(scene)


def test_attempts_that_climb_one_by_one_blind_a_job_once() -> None:
    scene = Scene(launchers=False).run(10)
    for attempt in range(1, 40):
        forge(scene, attempt)
        scene.run(1)
    assert scene.job.attempt == 0
    scene.hang(2).until(lambda: scene.job.open_incident is not None, within=60)
    assert set(scene.blamed) == {2}


def test_a_forged_report_before_the_first_real_one_is_outvoted() -> None:
    scene = Scene(launchers=False)
    forge(scene)
    assert scene.job.attempt == FORGED
    scene.run(10)
    assert scene.job.attempt == 0
    found_afterwards(scene)


def test_most_ranks_of_a_job_without_launchers_may_jump_far_ahead() -> None:
    scene = Scene(launchers=False).run(10)
    scene.launch(attempt=40)
    scene.run(10)
    assert scene.job.attempt == 40
    assert scene.state == "running"


def test_the_next_attempt_of_a_job_without_launchers_counts_at_its_first_report() -> None:
    scene = Scene(launchers=False).run(10)
    scene.launch(attempt=1, startup=1)
    scene.run(1)
    assert scene.job.attempt == 1
    assert scene.job.stale.count == 0


def test_a_forged_owner_of_a_rank_keeps_it_no_longer_than_it_reports() -> None:
    scene = Scene(on_hang="log").run(10)
    forge(scene, attempt=1, rank=2)
    assert scene.job.columns.instances[2] == "forged"
    scene.run(40)
    assert scene.job.columns.instances[2] == scene.ranks[2].identity.instance
    found_afterwards(scene)


# Messages of launchers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", [2, FORGED])
def test_a_registration_of_a_higher_attempt_does_not_blind_a_job(attempt: int) -> None:
    scene = Scene(on_hang="log").run(10)
    scene.submit(NodeRegistration("false", "x", 1, 1, attempt=attempt))
    scene.run(5)
    assert scene.job.attempt == 1
    found_afterwards(scene)


@pytest.mark.parametrize("attempt", [1, 2, FORGED])
def test_a_start_by_a_false_launcher_does_not_blind_a_job(attempt: int) -> None:
    scene = Scene(on_hang="log").run(10)
    scene.submit(NodeRegistration("false", "x", 1, 1))
    scene.event(ProcessEventKind.STARTED, "false", attempt=attempt, rank=0, pid=1, world_size=1)
    scene.run(5)
    assert scene.job.attempt == 1
    found_afterwards(scene)


@pytest.mark.parametrize("attempts_claimed", [(2, 2), (3, 3), (2, 1), (1, 2), (2, 2, 2, 2)])
@pytest.mark.parametrize("restarted", [False, True])
def test_false_launchers_that_take_ranks_from_each_other_do_not_blind_a_job(
    attempts_claimed: tuple[int, ...], restarted: bool
) -> None:
    scene = Scene(hosts=2, on_hang="log", max_restarts=9).run(10)
    if restarted:
        scene.restart()
        scene.run(10)
    for n, attempt in enumerate(attempts_claimed):
        scene.submit(NodeRegistration(f"false-{n}", "x", 1, 1))
        scene.event(ProcessEventKind.STARTED, f"false-{n}", attempt=attempt, rank=0, pid=1, world_size=1)
    scene.run(5)
    assert scene.job.attempt == scene.attempt
    if scene.attempt not in attempts_claimed:
        assert [scene.job.nodes[f"node-{n}"].ranks for n in (0, 1)] == [{0, 1}, {2, 3}]
    found_afterwards(scene)


def test_a_false_launch_of_a_lower_attempt_is_undone_and_not_believed_again() -> None:
    scene = Scene(on_hang="log", max_restarts=9).run(10)
    scene.restart()
    scene.run(10)
    for n in range(3):
        scene.submit(NodeRegistration(f"false-{n}", "x", 1, 1))
        scene.event(ProcessEventKind.STARTED, f"false-{n}", attempt=1, rank=0, pid=1, world_size=1)
        assert scene.job.attempt == (2 if n else 1)
        scene.run(5)
        assert (scene.job.attempt, scene.job.nodes["node-0"].ranks >= {1, 2, 3}) == (2, True)
    found_afterwards(scene)


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_real_launch_soon_after_a_restart_counts_at_once(attempt: int) -> None:
    scene = Scene(hosts=2, max_restarts=9).run(10)
    scene.restart()
    scene.run(10)
    for n in range(2):  # the launchers before were killed
        scene.submit(NodeRegistration(f"new-{n}", f"host-{n}", 99, 2, "gpt"))
    for rank in range(4):
        node = f"new-{rank // 2}"
        scene.event(ProcessEventKind.STARTED, node, attempt=attempt, rank=rank, pid=9, world_size=4)
    for rank in scene.ranks:
        rank.identity = rank.identity._replace(attempt=attempt, pid=9, instance=f"new-{rank.number}")
    assert scene.job.attempt == attempt
    for _ in range(20):
        scene.now += 1
        for rank in scene.ranks:
            if (report := scene.report(rank)) is not None:
                apply(scene.job, report, scene.now)
    assert (scene.job.attempt, scene.job.launches) == (attempt, 1)
    assert {name: node.ranks for name, node in scene.job.nodes.items()} == {"new-0": {0, 1}, "new-1": {2, 3}}


def test_forged_reports_do_not_keep_a_false_attempt_alive() -> None:
    scene = Scene(on_hang="log").run(10)
    scene.submit(NodeRegistration("false", "x", 1, 1))
    scene.event(ProcessEventKind.STARTED, "false", attempt=7, rank=0, pid=1, world_size=1)
    for _ in range(5):
        for rank in range(4):
            for attempt in (7, 2, 1, FORGED):
                forge(scene, attempt, rank)
        scene.run(1)
    assert scene.job.attempt == 1
    found_afterwards(scene)


def test_a_restored_attempt_has_its_launchers_and_ranks_as_before() -> None:
    scene = Scene(hosts=2, on_hang="log").run(10)
    scene.submit(NodeRegistration("false", "x", 1, 1))
    scene.event(ProcessEventKind.STARTED, "false", attempt=2, rank=0, pid=1, world_size=1)
    assert scene.job.attempt == 2
    scene.run(5)
    assert [scene.job.nodes[f"node-{n}"].ranks for n in (0, 1)] == [{0, 1}, {2, 3}]
    assert not scene.job.nodes["false"].ranks
    assert scene.job.columns.pid_R.tolist() == [rank.identity.pid for rank in scene.ranks]
    assert scene.job.previous is None


def test_a_launcher_that_ran_ranks_may_have_restarted_often_while_the_monitor_was_away() -> None:
    scene = Scene(hosts=2).run(10)
    scene.launch(attempt=60)
    scene.run(10)
    assert scene.job.attempt == 60
    assert scene.state == "running"


def test_late_reports_of_an_attempt_that_was_replaced_do_not_restore_it() -> None:
    scene = Scene(hosts=2).run(10)
    late = [report for rank in scene.ranks if (report := scene.report(rank)) is not None]
    scene.startup = 20
    scene.restart()
    for _ in range(5):
        for report in late:
            apply(scene.job, report, scene.now)
        scene.run(1)
    assert scene.job.attempt == 2


def begin(scene: Scene, *ranks: int) -> None:
    """The launchers of these ranks start the second attempt."""
    for rank in ranks:
        scene.event(ProcessEventKind.STARTED, scene.ranks[rank].node, attempt=2, rank=rank, pid=rank, world_size=4)


def test_an_attempt_frees_the_one_before_once_all_launchers_have_gone_on() -> None:
    scene = Scene(hosts=2).run(10)
    begin(scene, 0, 1)
    assert scene.run(2).job.previous is not None
    begin(scene, 2)
    assert scene.run(1).job.previous is None
    assert scene.job.attempt == 2


def test_a_parked_launcher_has_gone_on() -> None:
    scene = Scene(hosts=2).run(10)
    begin(scene, 0, 1)
    assert scene.run(2).job.previous is not None
    scene.submit(NodeObservation("node-1", 1, role=NodeRole.PARKED))
    assert scene.job.previous is None


def test_without_launchers_an_attempt_frees_the_one_before_after_a_while() -> None:
    scene = Scene(launchers=False).run(10)
    scene.launch(attempt=1)
    kept = [scene.run(10).job.previous]
    kept.append(scene.run(310).job.previous)
    assert [each is None for each in kept] == [False, True]
    assert not scene.job.stale.claims


# What is shown --------------------------------------------------------------------------------------------------------


def test_lasting_stale_reports_are_trouble_that_is_shown_until_they_end() -> None:
    scene = Scene().run(10)
    assert verdict.job_state(scene.job, scene.now) == (JobState.RUNNING, "")
    for _ in range(8):
        forge(scene, rank=3)
        scene.run(1)
    assert verdict.job_state(scene.job, scene.now) == (JobState.RUNNING, attempts.TROUBLE)
    scene.run(90)
    assert verdict.job_state(scene.job, scene.now) == (JobState.RUNNING, "")
    assert scene.job.stale.count == 8


def test_claims_are_kept_within_bounds() -> None:
    scene = Scene(launchers=False).run(10)
    for rank in range(5000):
        forge(scene, FORGED, rank)
    assert scene.job.stale.count == 5000
    assert len(scene.job.stale.claims) <= 2 * 4 + 1024
    assert len(scene.job.columns) == 4
