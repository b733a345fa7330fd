"""Counters of states entered: a state that ends between two scrapes is counted."""

from __future__ import annotations

from dataclasses import replace

from monitor.publish.scored import NOW, scored
from rankwatch.contract.enums import JobState, VerdictKind
from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.publish.prometheus.state_entries import StateEntries
from rankwatch_monitor.publish.publisher import Publishing


def running() -> Job:
    job = scored(4)
    job.last_heard = NOW
    job.columns.reported_R[:] = True
    return job


def counted(entries: StateEntries) -> dict[str, float]:
    return {labels[1]: number for _, number, labels in entries.samples() if number}


def test_a_hang_of_less_than_a_second_is_counted() -> None:
    job, entries = running(), StateEntries()
    entries.observe(job, NOW)
    assert len(entries.samples()) == len(JobState), "zeros too, so that an increase is seen"
    assert counted(entries) == {"running": 1}
    job.incidents.append(Incident("i1", "job", VerdictKind.SECTION_OVERRUN, 0, NOW, "Rank 0 is behind."))
    entries.observe(job, NOW + 0.1)
    job.incidents[0] = replace(job.incidents[0], phase=Phase.CLOSED, closed_at=NOW + 0.9)
    entries.observe(job, NOW + 0.9)
    entries.observe(job, NOW + 5.0)
    assert counted(entries) == {"running": 2, "hung": 1}


def test_a_state_entered_under_another_monitor_is_not_counted_again() -> None:
    job, entries = running(), StateEntries()
    entries.adopt(job, NOW)
    entries.observe(job, NOW + 2.0)
    assert counted(entries) == {}


def test_it_delivers_nothing_and_so_reports_no_failures() -> None:
    assert Publishing([], [StateEntries()]).failures() == {}


def test_an_evicted_job_has_no_series() -> None:
    job, entries = running(), StateEntries()
    entries.observe(job, NOW)
    del job
    assert entries.samples() == []
