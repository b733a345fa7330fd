"""What stands beside the goodput of a job."""

from __future__ import annotations

import pytest

from monitor.core.accounted import Accounted, account
from rankwatch.contract.enums import ProcessEventKind
from rankwatch.contract.semconv import CHECKPOINTING_SECTION
from rankwatch_monitor.core import goodput_accounting
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import RankReport, SectionStatistics
from rankwatch_monitor.core.goodput.intervals import Bucket
from rankwatch_monitor.core.incident_record import Phase
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.core.views.account import unsaved_log
from rankwatch_monitor.publish.text import report
from support.windows import COMPUTE, EVERY, Ranks, slower

WORK = (0.002, 0.012, 0.13)


def slow(windows: int, slow_from: int, late: float = 0.06, until: int | None = None) -> Ranks:
    """Rank 5 is slow from a window on; accounted for once a second."""
    ranks = Ranks(8, work=WORK, launchers=True, paced=True)
    for window in range(windows):
        for _ in range(int(EVERY)):
            goodput_accounting.account(ranks.job, ranks.now)
        held_back = slow_from <= window < (windows if until is None else until)
        ranks.run(1, slower(5, COMPUTE, late) if held_back else None)
        goodput_accounting.account(ranks.job, ranks.now)
    return ranks


def notes(job: Job, now: float) -> list[str]:
    found: list[str] = job_view.summary(job, now)["goodput_notes"]
    return found


def test_waiting_for_a_slow_rank_is_no_useful_time() -> None:
    scene = slow(90, 45)
    job, now = scene.job, scene.now
    (straggler,) = job.performance.stragglers
    assert straggler.share is not None
    waited = goodput_accounting.spent(job)[Bucket.WAITING]
    assert waited == pytest.approx(45 * EVERY * straggler.share, rel=0.05), "from the first slow window on"
    spent = goodput_accounting.spent(job)
    lived, busy = sum(spent.values()), goodput_accounting.ratio(job)
    assert busy == pytest.approx(spent[Bucket.PRODUCTIVE] / lived)
    assert busy + waited / lived > 0.98
    shown = job_view.summary(job, now)
    assert shown["goodput"] == round(busy, 3)
    words = f"{100 * waited / lived:.1f} % lost waiting for rank 5"
    assert shown["goodput_notes"] == [words] == job_view.goodput(job, now)["notes"]
    printed = " ".join(report.text(job, now).split())
    assert f"GOODPUT {100 * busy:.1f} % of " in printed, "the figure shown is that after the waiting"
    assert f"; {words} " in printed
    assert job_view.goodput(job, now)["window"]["ratio"] == pytest.approx(busy, abs=0.01)


def test_the_silent_twin_waits_for_no_rank() -> None:
    scene = slow(30, 30)
    assert notes(scene.job, scene.now) == []
    assert job_view.goodput(scene.job, scene.now)["waited_for"] == ""


def test_waiting_stays_known_after_the_rank_is_fast_again() -> None:
    scene = slow(60, 20, until=40)
    assert not scene.job.performance.open_stragglers
    assert notes(scene.job, scene.now)[0].endswith(" % lost waiting for rank 5")
    before = goodput_accounting.spent(scene.job)[Bucket.WAITING]
    scene.run(5)
    goodput_accounting.account(scene.job, scene.now)
    assert goodput_accounting.spent(scene.job)[Bucket.WAITING] == before


def test_steps_after_the_checkpoint_are_at_risk_while_a_job_stands_and_only_then() -> None:
    scene = Accounted(checkpoint=50, saves=True).run(92)
    assert notes(scene.job, scene.now) == []
    scene.crash(1, "boom").run(1)
    shown = job_view.summary(scene.job, scene.now)
    assert (shown["state"], scene.incident.phase) == ("restarting", Phase.ACTING)
    assert shown["steps_at_risk"] == pytest.approx(41, abs=1)
    assert notes(scene.job, scene.now) == [f"up to {shown['steps_at_risk']} steps lost by this restart"]
    scene.restart()
    scene.run(15)
    assert notes(scene.job, scene.now) == []
    assert job_view.summary(scene.job, scene.now)["steps_at_risk"] is None


@pytest.mark.parametrize("saves", [True, False])
def test_once_the_ranks_are_restarted_what_was_at_risk_is_lost(saves: bool) -> None:
    scene = Accounted(checkpoint=50, saves=saves).run(92)
    scene.hang(1).until(lambda: scene.job.incidents and scene.incident.phase is Phase.RECOVERING)
    steps = job_view.summary(scene.job, scene.now)["steps_at_risk"]
    words = f"up to {steps} steps" if saves else "all steps since the start"
    assert notes(scene.job, scene.now) == [f"{words} lost by this restart"]


def test_a_suspicion_and_a_lost_job_have_steps_at_risk_too() -> None:
    scene = Accounted(checkpoint=50, saves=True, reports_durations=True).run(92)
    scene.hang(1).until(lambda: scene.job.open_incident)
    assert not scene.incident.confirmed
    shown = job_view.summary(scene.job, scene.now)
    assert shown["goodput_notes"] == [f"up to {shown['iteration'] - 49} steps at risk"]
    lost = Accounted(checkpoint=50, saves=True).run(92)
    lost.cut_host(0).until(lambda: lost.state == "lost", within=400)
    assert notes(lost.job, lost.now)[-1].endswith(" steps at risk")


@pytest.mark.parametrize("hang", ["hang", "cut_host"])
def test_an_open_fault_that_holds_a_job_up_states_what_a_restart_would_repeat(hang: str) -> None:
    scene = Accounted(hosts=2, on_hang="log", checkpoint=50, saves=True).run(92)
    getattr(scene, hang)(1)
    scene.until(lambda: scene.job.open_incident and scene.job.open_incident.confirmed).run(1)
    shown = job_view.summary(scene.job, scene.now)
    assert shown["steps_at_risk"] == shown["iteration"] - 49
    assert notes(scene.job, scene.now) == [f"up to {shown['steps_at_risk']} steps at risk"]
    scene.run(5)
    assert job_view.summary(scene.job, scene.now)["goodput_notes"] == shown["goodput_notes"]


def test_without_a_known_checkpoint_all_steps_of_a_job_that_stands_are_at_risk() -> None:
    scene = Accounted(on_hang="log").run(60)
    assert notes(scene.job, scene.now) == []
    scene.hang(1).until(lambda: scene.job.open_incident).run(1)
    assert notes(scene.job, scene.now) == ["all steps since the start at risk"]
    assert job_view.summary(scene.job, scene.now)["steps_at_risk"] is None


def test_how_long_a_step_took_is_stated_while_none_completes_and_only_then() -> None:
    scene = Accounted(checkpoint=50, saves=True).run(92)
    assert job_view.summary(scene.job, scene.now)["step_seconds"] is None
    scene.crash(1, "boom").run(1)
    shown = job_view.summary(scene.job, scene.now)
    assert shown["iterations_per_second"] == 0
    assert shown["step_seconds"] == pytest.approx(1, rel=0.1)
    assert job_view.summary(scene.job, scene.now + 10)["step_seconds"] == shown["step_seconds"]


def test_steps_of_a_finished_job_that_no_save_may_hold_are_stated() -> None:
    scene = Accounted(checkpoint=50, saves=True).run(92)
    assert account(scene.job, scene.now)[0].startswith("a step takes "), "no warning while it trains"
    scene.finish()
    job, last = scene.job, scene.job.furthest_iteration
    assert last is not None
    checkpoint = job.ledger.checkpoint
    assert checkpoint is not None
    assert notes(job, scene.now) == [f"up to {last - 49} steps without a known save"]
    words = f"up to {last - 49} steps (50–{last}) have no known save"
    assert f"{words}: check where the script saves" in account(job, scene.now)
    printed = " ".join(report.text(job, scene.now).split())
    assert f"; {words}: check where the script saves" in printed
    assert f" kept; up to {last - 49} steps without a known save " in printed


def test_the_log_in_which_a_later_save_may_stand_is_named_with_what_shows_it() -> None:
    scene = Accounted(checkpoint=50, saves=True, facts={"log": "/logs/train.out"}).run(92)
    scene.finish()
    (clause,) = [each for each in account(scene.job, scene.now) if "known save" in each]
    assert clause.endswith(": check where the script saves, or what rank 0 logged")
    log = unsaved_log(scene.job, scene.now)
    assert log is not None
    assert (log.host, log.command) == ("host-0", "tail -n 200 /logs/train.out")
    assert "\n  on host-0:\n  tail -n 200 /logs/train.out\n" in report.text(scene.job, scene.now)


@pytest.mark.parametrize("ends", [ProcessEventKind.FINISHED, ProcessEventKind.STOPPED])
@pytest.mark.parametrize("behind", [0, 5])
def test_a_job_whose_last_step_may_be_saved_has_no_warning(behind: int, ends: ProcessEventKind) -> None:
    """The last report has the last steps and the save: which of them came first is not known."""
    scene = Accounted(checkpoint=1000).run(92)
    saved = {CHECKPOINTING_SECTION: SectionStatistics(1, 0.1, 0.1, 0.1)}
    for rank in scene.ranks:
        assert rank.at.iteration is not None
        rank.at.iteration += behind
        apply(scene.job, RankReport(rank.identity, iteration=rank.at.iteration, finished=saved), scene.now)
    scene.finish(ends)
    goodput_accounting.account(scene.job, scene.now)
    checkpoint = scene.job.ledger.checkpoint
    assert checkpoint is not None
    assert scene.job.ledger.reached - checkpoint.iteration == behind
    assert notes(scene.job, scene.now) == []
    assert not any("no known save" in clause for clause in account(scene.job, scene.now))
    assert unsaved_log(scene.job, scene.now) is None


def test_a_failed_job_has_lost_the_steps_that_it_never_did_again() -> None:
    scene = Accounted(checkpoint=50, saves=True).run(92)
    scene.crash(1, "boom").run(1)
    scene.restart()
    scene.run(15)
    scene.crash(1, "boom").run(1)
    scene.finish(ProcessEventKind.FAILED, "no restart is left")
    shown = job_view.summary(scene.job, scene.now)
    furthest, reached = scene.job.incidents[0].furthest_iteration, scene.job.furthest_iteration
    assert furthest is not None
    assert reached is not None
    assert shown["steps_lost"] == furthest - reached > 20
    assert notes(scene.job, scene.now) == [f"{shown['steps_at_risk']} steps unsaved"]
    assert shown["steps_lost"] + shown["steps_at_risk"] == furthest - shown["checkpoint"]["step"]


def test_what_a_restart_repeats_is_what_the_restarts_before_show() -> None:
    scene = Accounted(checkpoint=50, saves=True).run(92)
    for _ in range(2):
        scene.crash(1, "boom").run(1)
        scene.restart()
        scene.run(15)
    scene.crash(1, "boom").run(1)
    scene.finish(ProcessEventKind.FAILED, "no restart is left")
    shown, incidents = job_view.summary(scene.job, scene.now), scene.job.incidents
    resumed = int(scene.job.columns.first_iteration_R.min())
    assert f"resumed at step {resumed};" in incidents[1].outcome
    assert (shown["checkpoint"]["step"], shown["checkpoint"]["exact"]) == (resumed - 1, True)
    assert shown["steps_at_risk"] == shown["iteration"] + 1 - resumed
