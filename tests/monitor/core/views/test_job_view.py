"""What the API and the page are shown, derived when asked."""

from __future__ import annotations

import itertools
import json

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, DirectiveKind, JobState, ProcessEventKind, ProcessState, RankState
from rankwatch.contract.messages import NodeObservation, RankObservation
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.core.incident.lifecycle import verdicts_of
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.core.views.job_view import RANK_STATES, rank_states, ranks, stack_groups, summary
from rankwatch_monitor.core.views.verdict import job_state
from rankwatch_monitor.store import codec


def test_the_life_of_a_job_in_states() -> None:
    scene = Scene()
    scene.ignored.add(DirectiveKind.CAPTURE)
    states = [scene.state]

    def look() -> None:
        if scene.state != states[-1]:
            states.append(scene.state)

    for _ in range(10):
        scene.tick()
        look()
    scene.hang(2)
    for _ in range(30):
        scene.tick()
        look()
    scene.finish()
    look()
    assert states == ["starting", "running", "hung", "restarting", "running", "finished"]


def test_a_job_without_reports_is_starting_then_lost() -> None:
    job = Job("job", 100.0)
    assert job_state(job, 110.0) == ("starting", "no rank has reported yet")
    state, reason = job_state(job, 500.0)
    assert state == "lost"
    assert reason == "nothing is received from any rank or launcher"


def test_the_record_of_a_job_whose_launcher_was_killed_tells_until_when_it_ran() -> None:
    trained = Scene().run(10).job
    kept = codec.job_of(codec.job_row(trained), trained.last_heard + 5.0)
    assert job_state(kept, trained.last_heard + 5.0)[0] == "starting", "a monitor that starts again waits for reports"
    kept.of_record = True
    state, reason = job_state(kept, trained.last_heard + 5.0)
    assert state == "lost"
    assert reason.startswith("running until")


def test_a_job_that_is_lost_has_no_older_finding_for_its_headline() -> None:
    scene = Scene(on_hang="log").run(10).hang(2).until_found().run(1)
    assert summary(scene.job, scene.now)["headline"].startswith("Rank 2 on host-0 hangs")
    lost = summary(scene.job, scene.now + 400.0)
    assert (lost["state"], lost["open_incidents"]) == ("lost", 1)
    assert lost["headline"] == "Nothing is received from any rank or launcher"


def test_a_job_whose_launcher_speaks_is_not_lost() -> None:
    scene = Scene(silence_timeout=30.0, initial_heartbeat_timeout=None)
    for rank in scene.ranks:
        rank.starts_in = 10_000
    scene.run(300)
    assert scene.state in ("starting", "running")


def test_a_watched_job_whose_ranks_all_shut_down_has_finished() -> None:
    scene = Scene(launchers=False).run(10)
    for rank in scene.ranks:
        report = scene.report(rank)
        assert report is not None
        apply(scene.job, report._replace(ended=True), scene.now)
        rank.over = True
    scene.run(1000)
    assert scene.state == "finished"
    assert scene.quiet()


def test_the_end_of_a_job_is_what_its_launchers_say_while_they_are_heard() -> None:
    scene = Scene(silence_timeout=30.0).run(10)
    for rank in scene.ranks:
        apply(scene.job, rank.report(scene.now)._replace(ended=True), scene.now)
        rank.over = True
    assert scene.run(1).state == "running"
    assert job_state(scene.job, scene.now + 31.0)[0] == "finished", "they are gone without a word"
    scene.event(ProcessEventKind.FAILED, reason="rank 1 exited with code 1")
    assert scene.state == "failed"


@pytest.mark.parametrize(("restarts", "state"), [(3, "restarting"), (0, "stopping")])
def test_a_crash_never_looks_like_a_hang(restarts: int, state: str) -> None:
    scene = Scene(max_restarts=restarts).run(10)
    seen = set()
    for code in (1, 2):
        scene.event(ProcessEventKind.EXITED, **scene.ranks[code].named, exit_code=code)
        seen.add(scene.state)
    assert seen == {state}


@pytest.mark.parametrize("restarts", [3, 0])
def test_victims_of_a_crash_have_not_finished(restarts: int) -> None:
    scene = Scene(max_restarts=restarts).run(10)
    scene.event(ProcessEventKind.EXITED, **scene.ranks[1].named, exit_code=1)
    apply(scene.job, scene.ranks[0].report(scene.now)._replace(ended=True), scene.now)  # by its atexit hook
    seen = RankObservation(rank=2, pid=1, process_state=ProcessState.EXITED)  # before its exit code is known
    scene.submit(NodeObservation("node-0", scene.attempt, (seen,)))

    def states() -> list[str]:
        codes_R = rank_states(scene.job, verdicts_of(scene.job, scene.now), scene.now)
        return [str(RANK_STATES[code]) for code in codes_R[:3]]

    assert states()[:2] == ["ended", "dead"]
    assert states()[2] != "finished"
    scene.event(ProcessEventKind.FAILED, reason="rank 1 exited with code 1")
    assert states() == ["ended", "dead", "ended"]


def test_every_state_comes_with_a_reason_unless_all_is_well() -> None:
    scene = Scene(on_hang="log").run(10)
    assert job_state(scene.job, scene.now)[1] == ""
    scene.hang(2).until_found()
    assert job_state(scene.job, scene.now) == ("hung", scene.incident.reason)


def test_an_ordered_capture_does_not_make_a_job_look_hung() -> None:
    scene = Scene().run(10)
    scene.order(Action.CAPTURE)
    assert scene.state == "running"


def test_the_summary_is_json_and_states_what_the_api_promises() -> None:
    scene = Scene().run(20)
    shown = summary(scene.job, scene.now)
    json.dumps(shown)
    for key in ("id", "name", "state", "world_size", "ranks_reporting", "attempt", "started_at", "goodput"):
        assert key in shown
    assert (shown["state"], shown["world_size"], shown["ranks_reporting"], shown["attempt"]) == ("running", 4, 4, 1)
    assert shown["iterations_per_second"] == pytest.approx(1.0)


def test_a_rank_that_goes_on_is_shown_with_its_ages_as_of_its_last_report() -> None:
    scene = Scene(launchers=False).run(10)
    scene.ranks[1].at.opened = {"step": scene.now - 4.0, "forward": scene.now - 1.0}
    report = scene.report(scene.ranks[1])
    assert report is not None
    apply(scene.job, report, scene.now)
    row = ranks(scene.job, scene.now + 2.0)[1]
    json.dumps(row)
    assert row["open_sections"] == {"step": pytest.approx(4.0), "forward": pytest.approx(1.0)}
    assert list(row["open_sections"]) == ["step", "forward"], "outermost first"
    assert row["heartbeat_age"] == pytest.approx(0.5)
    assert row["report_age"] == pytest.approx(2.0)
    assert (row["rank"], row["host"], row["state"], row["idle"]) == (1, "host-0", "running", None)


def test_a_rank_that_never_spoke_is_shown_without_made_up_numbers() -> None:
    scene = Scene(launchers=False)
    scene.ranks[3].starts_in = 10_000
    scene.run(5)
    row = ranks(scene.job, scene.now)[3]
    assert row["state"] == "unseen"
    assert {row[k] for k in ("iteration", "pid", "heartbeat_age", "report_age", "progress")} == {None}


def test_the_ranks_of_a_lost_job_are_silent_and_not_running() -> None:
    scene = Scene(ranks=4, hosts=2).run(10).cut_host(0).cut_host(1)
    scene.run(70)
    assert job_state(scene.job, scene.now)[0] is JobState.LOST
    assert {row["state"] for row in ranks(scene.job, scene.now)} == {"silent"}
    assert summary(scene.job, scene.now)["ranks_reporting"] == 0


def test_the_suspect_of_a_lost_job_stays_the_suspect_of_those_that_wait() -> None:
    """It is behind: no verdict is about its own section."""
    scene = Scene(ranks=4, hosts=2, reports_durations=True).run(60).hang(2, outside=True).until_found()
    before = [row["state"] for row in ranks(scene.job, scene.now)]
    assert sorted(before) == ["suspected", "waiting", "waiting", "waiting"]
    scene.cut_host(0).cut_host(1).run(70)
    assert job_state(scene.job, scene.now)[0] is JobState.LOST
    assert [row["state"] for row in ranks(scene.job, scene.now)] == before


def test_ranks_of_a_lost_node_and_silent_ranks_do_not_report() -> None:
    scene = Scene(ranks=4, hosts=2, on_hang="log").run(10).cut_host(1)
    scene.event(ProcessEventKind.NODE_LOST, "node-0", lost_node="node-1", reason="no reports for 15 s")
    assert summary(scene.job, scene.now)["ranks_reporting"] == 2

    scene = Scene(ranks=4, on_hang="log").run(10).cut(3)
    scene.until(lambda: scene.rank_state(3) is RankState.SILENT)
    assert summary(scene.job, scene.now)["ranks_reporting"] == 3


def test_the_bytes_of_the_live_grid_are_the_order_of_the_vocabulary() -> None:
    scene = Scene(on_hang="log").run(10).stop(1).until_found()
    codes = rank_states(scene.job, verdicts_of(scene.job, scene.now), scene.now)
    assert codes.dtype.itemsize == 1
    assert RANK_STATES[codes[1]] is RankState.STOPPED
    assert tuple(RankState) == RANK_STATES


def test_the_culprit_row_states_why() -> None:
    scene = Scene(on_hang="log").run(10).hang(2).until_found()
    rows = ranks(scene.job, scene.now)
    assert "behind" in rows[2]["reason"]
    assert rows[0]["reason"] == ""
    scene.resume().run(3)
    assert ranks(scene.job, scene.now)[2]["reason"] == ""


def test_after_a_crash_the_other_ranks_wait_until_the_next_attempt_and_still_report() -> None:
    scene = Scene(8, hosts=2).run(10).die(5, exit_code=1).until_found().run(5)
    states = [row["state"] for row in ranks(scene.job, scene.now)]
    assert states == ["waiting"] * 5 + ["dead"] + ["waiting"] * 2
    shown = summary(scene.job, scene.now)
    assert (shown["ranks_reporting"], shown["iterations_per_second"]) == (7, 0.0)
    assert all(row["report_age"] < 2.0 for row in ranks(scene.job, scene.now) if row["rank"] != 5)
    scene.event(ProcessEventKind.RESTARTING, attempt=2)
    scene.launch(attempt=2)
    scene.run(10)
    assert {row["state"] for row in ranks(scene.job, scene.now)} == {"running"}


def test_after_the_restart_no_rank_is_shown_as_hung() -> None:
    scene = Scene().run(10).hang(2)
    scene.until(lambda: scene.closings).run(2)
    assert {row["state"] for row in ranks(scene.job, scene.now)} == {"running"}


def test_stack_groups_show_the_culprit_first() -> None:
    scene = Scene(on_hang="capture").run(10).stop(2).until_found().run(1)
    groups = stack_groups(scene.incident)
    json.dumps(groups)
    assert [g["ranks"] for g in groups] == [[2], [0, 1, 3]]
    assert [g["is_culprit"] for g in groups] == [True, False]
    assert [g["label"] for g in groups] == ["rank 2", "3 ranks"]
    assert [g["waits"] for g in groups] == [False, True]
    assert groups[0]["process_state"] == ProcessState.STOPPED


def test_a_silent_rank_is_shown_as_silent_also_when_it_is_blamed() -> None:
    scene = Scene(launchers=False, silence_timeout=30.0).run(10).cut(2).until_found()
    assert job_view.ranks(scene.job, scene.now)[2]["state"] == "silent"


def test_dropped_counts_do_not_decrease_when_a_process_is_replaced() -> None:
    job = Job("job", 100.0)
    counts = []
    for at, attempt, process, count in (
        (101, 1, "a", 3),
        (102, 1, "a", 5),
        (103, 2, "b", 1),
        (104, 2, "b", 1),
        (105, 2, "b", 4),
    ):
        identity = RankIdentity("job", 0, world_size=1, attempt=attempt, instance=process)
        apply(job, RankReport(identity, dropped={"queue_full": count}), float(at))
        counts.append(job.dropped["queue_full"])
    assert counts == [3, 5, 6, 6, 9]


def test_a_job_whose_ranks_shut_down_has_ended_also_without_a_launcher() -> None:
    job = Job("job", 100.0)
    identity = RankIdentity("job", 0, world_size=1, attempt=1, instance="a")
    apply(job, RankReport(identity), 101.0)
    assert job_view.summary(job, 102.0)["ended_at"] is None
    apply(job, RankReport(identity, ended=True), 103.0)
    shown = job_view.summary(job, 500.0)
    assert (shown["state"], shown["ended_at"]) == ("finished", 103.0)


def test_the_state_does_not_follow_that_of_processes_that_import_from_a_slow_disk() -> None:
    scene = Scene(ranks=2)
    for rank in scene.ranks:
        rank.starts_in = 1000
    states = []
    for second in range(40):
        scene.tick()
        sleeping = ProcessState.UNINTERRUPTIBLE if second % 2 else ProcessState.ALIVE
        seen = tuple(RankObservation(rank.number, rank.identity.pid, sleeping) for rank in scene.ranks)
        scene.submit(NodeObservation("node-0", scene.attempt, seen))
        states.append(scene.state)
    assert states[-1] == "running"
    assert sum(a != b for a, b in itertools.pairwise(states)) == 1, "it changes once"


def test_the_step_of_an_ended_job_is_known_after_a_restart_of_the_monitor() -> None:
    scene = Scene().run(10)
    furthest = scene.job.furthest_iteration
    assert furthest is not None
    scene.job.ledger.mark(furthest)
    scene.finish()
    scene.reload()
    assert summary(scene.job, scene.now)["iteration"] == furthest


def test_a_summary_has_the_last_checkpoint() -> None:
    assert summary(Scene().run(60).job, 1_000_060.0)["checkpoint"] is None
    scene = Scene(checkpoint=20, saves=True).run(50)
    known = summary(scene.job, scene.now)["checkpoint"]
    assert known["step"] in (39, 40)
    assert 0 < scene.now - known["at"] < 20
    stepless = Scene(steps=False).run(5).enter("checkpointing").run(3).leave()
    assert summary(stepless.job, stepless.now)["checkpoint"] == {"step": None, "at": stepless.now, "exact": False}
