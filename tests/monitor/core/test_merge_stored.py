"""A job that began in memory and is given the past that was stored of it."""

from __future__ import annotations

from rankwatch.contract.enums import DirectiveKind, StragglerVerdict, VerdictKind
from rankwatch.contract.policy import Policy
from rankwatch.contract.statistics import SectionWindow
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import (
    RankIdentity,
    RankReport,
    SectionStatistics,
    WindowReport,
)
from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.merge_stored import join
from rankwatch_monitor.core.regression.sample import Sample

KIND = next(iter(VerdictKind))


def received(began: float, attempt: int = 1, median: float = 0.5, device: str = "GPU-a") -> Job:
    """A job of one rank that has spoken once."""
    job = Job("j", began)
    identity = RankIdentity("j", 0, world_size=1, attempt=attempt, instance="a", device=device)
    window = WindowReport(8, 8, {"step": SectionWindow(8, median, median, median, median)})
    finished = {"step": SectionStatistics(20, 20.0, 1.0, 1.0)}
    apply(
        job, RankReport(identity, iteration=8, finished=finished, longest={"step": median}, window=window), began + 1.0
    )
    return job


def incident(job: Job, number: int, phase: Phase) -> Incident:
    job.last_incident = number
    job.incident_counts[KIND] = number
    made = Incident(f"j-{job.created_at:.0f}-{number}", "j", KIND, 1, job.created_at, "it hung", phase=phase)
    job.incidents.append(made)
    return made


def test_what_was_stored_comes_before_what_happened_since() -> None:
    past, job = received(1_000.0), received(2_000.0)
    incident(past, 1, Phase.CLOSED)
    incident(past, 2, Phase.ACTING)
    incident(job, 1, Phase.DETECTED)
    past.new_directive(DirectiveKind.RESTART, "earlier")
    job.last_directive = 2_000
    job.new_directive(DirectiveKind.RESTART, "since")
    past.restarts, job.restarts = 2, 1
    (closed,) = join(job, past, Policy())
    assert (closed.id, closed.phase, closed.closed_at) == ("j-1000-2", Phase.CLOSED, 2_000.0)
    assert [each.id for each in job.incidents] == ["j-1000-1", "j-1000-2", "j-2000-1"]
    assert job.open_incident is job.incidents[-1]
    assert (job.last_incident, job.incident_counts[KIND], job.restarts) == (3, 3, 3)
    assert [each.id for each in job.directives] == [1, 2_001]
    assert job.last_directive == 2_001, "the next one is above what launchers have seen"
    assert (job.created_at, job.attempt_since, job.ledger.began) == (1_000.0, past.attempt_since, 1_000.0)


def test_what_was_set_since_holds_and_all_else_is_as_it_was() -> None:
    past, job = received(1_000.0), received(2_000.0)
    past.policy = Policy().changed({"max_restarts": 7, "section_timeouts": {"step": 9.0}})
    job.policy = Policy().changed({"section_timeouts": {"step": 2.0}})
    join(job, past, Policy())
    assert job.policy.max_restarts == 7
    assert dict(job.policy.section_timeouts) == {"step": 2.0}


def test_limits_go_on_from_the_longest_of_both() -> None:
    past, job = received(1_000.0, median=3.0), received(2_000.0, median=0.5)
    version = job.durations.version
    join(job, past, Policy())
    assert (job.durations.sections["step"].longest, job.durations.sections["step"].count) == (3.0, 40)
    assert job.durations.version > version


def test_devices_are_compared_with_their_own_best_of_both_times() -> None:
    past, job = received(1_000.0, median=0.25), received(2_000.0, median=0.5)
    other = received(1_000.0, median=0.125, device="GPU-b")
    join(past, other, Policy())
    join(job, past, Policy())
    performance = job.performance
    best, names = performance.best, performance.sections.names
    assert best.of_ranks(best.sections, names, performance.device_R)[0].tolist() == [0.25]
    assert len(best.rows) == 2
    assert performance.device_of(0) == "GPU-a"


def test_the_history_is_one() -> None:
    past, job = received(1_000.0), received(2_000.0)
    for of, at in ((past, 1_010.0), (past, 1_020.0), (job, 2_010.0)):
        of.performance.history.add(Sample(at, 10.0, 1, 8, 1, ("node-a",), 0.5, 0.5))
        of.performance.verdicts[StragglerVerdict.HEALTHY] = of.performance.verdicts.get(StragglerVerdict.HEALTHY, 0) + 1
    join(job, past, Policy())
    assert [sample.at for sample in job.performance.history.window()] == [1_010.0, 1_020.0, 2_010.0]
    assert job.performance.verdicts == {StragglerVerdict.HEALTHY: 3}
