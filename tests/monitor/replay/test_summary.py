"""The verdict over a whole recording: what lasted counts, what passed does not."""

from __future__ import annotations

from rankwatch.contract.enums import Cause, ScoreReference, StragglerVerdict
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.findings import Finding, Straggler
from rankwatch_monitor.core.straggler.state import Performance, Tally
from rankwatch_monitor.replay.summary import Summary, of_recording, summarize, worst

HEALTHY, WORKER, STAGE = StragglerVerdict.HEALTHY, StragglerVerdict.WORKER, StragglerVerdict.STAGE
WORKLOAD = StragglerVerdict.WORKLOAD


def straggler(rank: int, since: float, seen: float, *, ended: bool = False, cost: float = 1.0) -> Straggler:
    return Straggler(
        id=f"s{rank}-{since}",
        rank=rank,
        host="node-a",
        device="",
        cause=Cause.HOST,
        reference=ScoreReference.ROBUST,
        reason=f"Rank {rank} is slow.",
        since=since,
        seen=seen,
        ended=seen + 10 if ended else None,
        cost_gpu_hours=cost,
    )


def reported(windows: dict[StragglerVerdict, int], *stragglers: Straggler, finding: Finding | None = None) -> Summary:
    """The verdict over windows of 10 s."""
    performance = Performance()
    performance.verdicts = windows
    performance.stragglers = list(stragglers)
    if finding is not None:
        windows_of_it = windows[finding.verdict]
        performance.lasted = {
            (finding.verdict, finding.ranks): Tally(windows_of_it, windows_of_it * finding.share, finding)
        }
    return summarize(performance)


def test_nothing_judged_is_healthy() -> None:
    whole = reported({})
    assert (whole.verdict, whole.stragglers, whole.windows) == (HEALTHY, (), {})


def test_a_recorded_job_that_never_came_to_a_step_is_not_healthy() -> None:
    job, identity = Job("job", 0.0), RankIdentity("job", 0, world_size=1)
    for at in range(0, 300, 5):
        apply(job, RankReport(identity), float(at))
    whole = of_recording(job)
    assert whole.verdict is StragglerVerdict.NO_STEP
    assert whole.reason.startswith("No step has completed yet")
    assert worst([reported({WORKER: 60}, straggler(3, 0, 600)), whole]) is whole
    apply(job, RankReport(identity, iteration=0), 300.0)
    assert of_recording(job) == reported({})


def test_a_straggler_that_was_there_for_most_of_it_counts_also_when_it_ended() -> None:
    whole = reported({HEALTHY: 40, WORKER: 60}, straggler(3, 0, 600, ended=True))
    assert (whole.verdict, whole.cause, whole.ranks) == (WORKER, Cause.HOST, (3,))
    assert whole.reason == "Rank 3 is slow."


def test_one_that_was_there_briefly_does_not() -> None:
    whole = reported({HEALTHY: 90, WORKER: 10}, straggler(3, 0, 100, ended=True))
    assert (whole.verdict, whole.stragglers) == (HEALTHY, ())
    assert "worker in 10" in whole.reason


def test_one_that_is_slow_at_the_end_counts_once_it_lasts() -> None:
    windows = {HEALTHY: 970, WORKER: 30}
    assert reported(windows, straggler(3, 9800, 10_000)).verdict is WORKER
    assert reported(windows, straggler(3, 9950, 10_000)).verdict is HEALTHY


def test_times_of_one_rank_are_added() -> None:
    parts = [straggler(3, 0, 290, ended=True), straggler(3, 400, 690, ended=True, cost=2.0)]
    (one,) = reported({HEALTHY: 40, WORKER: 60}, *parts).stragglers
    assert one.rank == 3


def test_the_costliest_comes_first() -> None:
    whole = reported({WORKER: 10}, straggler(1, 0, 100), straggler(2, 0, 100, cost=5.0))
    assert [s.rank for s in whole.stragglers] == [2, 1]


def test_the_job_s_doing_is_reported_when_it_was_often_so() -> None:
    finding = Finding(STAGE, Cause.COMPUTE, "Stage 3 has more to do.", ranks=(6, 7), share=0.2)
    whole = reported({HEALTHY: 5, STAGE: 15}, finding=finding)
    assert (whole.verdict, whole.reason, whole.ranks, whole.stragglers) == (STAGE, finding.reason, (6, 7), ())
    assert reported({HEALTHY: 15, STAGE: 5}, finding=finding).verdict is HEALTHY


def test_a_second_cause_comes_after_the_one_that_costs_more() -> None:
    finding = Finding(STAGE, Cause.COMPUTE, "Stage 3 has more to do.", ranks=(6, 7), share=0.2)
    slow = straggler(3, 0, 200)
    slow.share = 0.1
    whole = reported({STAGE: 20}, slow, finding=finding)
    assert [(each.verdict, each.share) for each in whole.findings] == [(STAGE, 0.2), (WORKER, 0.1)]
    assert (whole.verdict, [s.rank for s in whole.stragglers]) == (STAGE, [3])


def test_what_was_often_so_has_a_reason_also_when_it_is_over() -> None:
    assert reported({HEALTHY: 5, WORKLOAD: 15}).reason == "The verdict was workload in 15 of 20 windows."


def test_the_worst_of_several_jobs() -> None:
    few, many = reported({WORKER: 10}, straggler(1, 0, 100)), reported({WORKER: 10}, straggler(1, 0, 100))
    healthy, stage = reported({HEALTHY: 9}), reported({STAGE: 9})
    assert worst([healthy, stage, few]) is few
    assert worst([healthy, stage]) is stage
    assert worst([]).verdict is HEALTHY
    assert worst([few, many]) in (few, many)
    assert few.to_json()["stragglers"][0]["cause"] == "host"
