"""What the list of jobs says of a job over its life."""

from __future__ import annotations

from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import job_view


def test_what_telemetry_lost_never_goes_down_when_a_process_is_replaced() -> None:
    job = Job("job", 100.0)
    told = []
    for at, attempt, process, count in (
        (101, 1, "a", 3),
        (102, 1, "a", 5),
        (103, 2, "b", 1),
        (104, 2, "b", 1),
        (105, 2, "b", 4),
    ):
        who = RankIdentity("job", 0, world_size=1, attempt=attempt, instance=process)
        apply(job, RankReport(who, dropped={"queue_full": count}), float(at))
        told.append(job.dropped["queue_full"])
    assert told == [3, 5, 6, 6, 9]


def test_a_job_whose_ranks_said_goodbye_has_ended_without_a_launcher_too() -> None:
    job = Job("job", 100.0)
    who = RankIdentity("job", 0, world_size=1, attempt=1, instance="a")
    apply(job, RankReport(who), 101.0)
    assert job_view.summary(job, 102.0)["ended_at"] is None
    apply(job, RankReport(who, ended=True), 103.0)
    shown = job_view.summary(job, 500.0)
    assert (shown["state"], shown["ended_at"]) == ("finished", 103.0)
