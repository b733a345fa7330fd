"""Ranks of a large job spread their reports of a passed limit; one that is known to stand still is not waited for."""

from __future__ import annotations

import pytest

from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.core.incident import lifecycle
from rankwatch_monitor.core.incident.lifecycle import SETTLE, advance
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job

START, LIMIT, SPREAD, RANKS, BEHIND = 1_000_000.0, 10.0, 5.0, 8, 3
PASSED = LIMIT + 0.01


@pytest.fixture(autouse=True)
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks spread their news as those of a job of 100,000 do."""
    monkeypatch.setattr(lifecycle, "burst_spread", lambda _: SPREAD)


class Stage:
    """A job whose ranks entered a step at second 0; what is not named otherwise happens half a second later."""

    def __init__(self) -> None:
        self.job = Job("job", START, policy=Policy().changed({"section_timeouts": {"step": LIMIT}}))

    def report(self, rank: int, at: float, *, progress: int = 2, moved: float = 0.5) -> None:
        """A rank reports at second ``at`` that it has not moved since ``moved``."""
        seen = RankReport(
            RankIdentity("job", rank, world_size=RANKS, host=f"host-{rank}", instance=f"i{rank}", started_at=START),
            iteration=7,
            progress=progress,
            open_sections={"step": at},
            quiet=at - moved,
            first_iteration=0,
        )
        apply(self.job, seen, START + at)

    def all_report(self, at: float, *, behind: int | None = BEHIND, but: int | None = None) -> None:
        """The regular reports."""
        for rank in range(RANKS):
            if rank != but:
                self.report(rank, at, progress=1 if rank == behind else 2)

    def opened_at(self) -> tuple[float, Incident]:
        """Evaluate ten times a second from the first report of the passed limit on, until there is an incident."""
        self.report(0, PASSED)
        for tenths in range(200):
            at = PASSED + tenths / 10
            advance(self.job, START + at)
            if self.job.incidents:
                return at - PASSED, self.job.incidents[-1]
        raise AssertionError("no incident is opened")


def test_a_job_that_stands_still_is_not_waited_for_and_the_rank_behind_is_named() -> None:
    stage = Stage()
    stage.all_report(6.0)
    waited, incident = stage.opened_at()
    assert SETTLE <= waited < SETTLE + 0.2
    assert [culprit.rank for culprit in incident.culprits] == [BEHIND]
    assert incident.affected == tuple(range(RANKS)), "they have passed the limit, too, and will report it"


def test_where_all_stand_at_the_same_point_the_first_to_report_it_is_not_blamed() -> None:
    stage = Stage()
    stage.all_report(6.0, behind=None)
    waited, incident = stage.opened_at()
    assert waited < SETTLE + 0.2
    assert incident.culprits == ()
    assert incident.affected == tuple(range(RANKS))


def test_a_rank_last_heard_before_the_last_movement_of_another_is_waited_for() -> None:
    stage = Stage()
    stage.report(5, 2.0, progress=1)
    stage.all_report(6.0, behind=None, but=5)
    stage.report(7, 6.0, moved=4.0)
    waited, incident = stage.opened_at()
    assert waited >= SETTLE + SPREAD
    assert 5 in {culprit.rank for culprit in incident.culprits}


def test_when_it_has_reported_nothing_more_is_waited_for() -> None:
    stage = Stage()
    stage.report(5, 2.0, progress=1)
    stage.all_report(6.0, behind=None, but=5)
    stage.report(7, 6.0, moved=4.0)
    stage.report(5, 9.0)
    waited, incident = stage.opened_at()
    assert waited < SETTLE + 0.2
    assert incident.culprits == ()


def test_a_rank_that_moves_is_waited_for() -> None:
    stage = Stage()
    stage.all_report(6.0, behind=None)
    stage.report(6, 9.5, moved=9.0)
    waited, _ = stage.opened_at()
    assert waited >= SETTLE + SPREAD


def test_a_report_may_have_been_on_its_way_when_another_rank_moved() -> None:
    stage = Stage()
    stage.all_report(6.0, behind=None)
    stage.report(6, 9.0, moved=5.5)
    waited, _ = stage.opened_at()
    assert waited >= SETTLE + SPREAD


def test_while_reports_are_refused_each_rank_is_given_its_time() -> None:
    stage = Stage()
    stage.all_report(6.0)
    stage.job.shed_at = START + 5.0
    waited, _ = stage.opened_at()
    assert waited >= SETTLE + SPREAD


def test_a_rank_of_which_no_movement_is_known_is_waited_for() -> None:
    stage = Stage()
    stage.all_report(6.0)
    columns = stage.job.columns
    columns.last_progress_R[2] = columns.inferred_progress_R[2] = columns.last_heartbeat_R[2] = float("nan")
    waited, _ = stage.opened_at()
    assert waited >= SETTLE + SPREAD
