"""Scripts that let Rankwatch count their steps: from 0 in each attempt, whatever checkpoint they loaded."""

from __future__ import annotations

from typing import Any

import pytest

from monitor.core.accounted import Accounted
from monitor.core.scene import Rank
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.core.incident_record import Incident


class Counting(Accounted):
    """Every rank counts the steps of its own process."""

    def report(self, rank: Rank) -> RankReport | None:
        report = super().report(rank)
        if report is None or report.iteration is None or report.first_iteration is None:
            return report
        return report._replace(iteration=report.iteration - report.first_iteration, first_iteration=None)


def restarted(scene: Accounted) -> Incident:
    """The incident of a rank that hangs, after the restart."""
    scene.hang(2).until_found().until(lambda: not scene.job.incidents[-1].open)
    return scene.job.incidents[-1]


def test_without_a_known_save_it_is_not_known_how_many_steps_were_lost() -> None:
    scene = Counting(on_hang="restart", checkpoint=20).run(92)
    incident = restarted(scene)
    assert incident.steps_lost is None
    assert "not known" in incident.outcome
    assert "no checkpoint" not in incident.outcome
    scene.run(30)
    assert scene.spent.get("lost_steps", 0.0) <= 1.5, "the interrupted step"
    assert scene.job.ledger.furthest == scene.job.ledger.reached


def test_steps_after_the_last_known_save_were_lost() -> None:
    scene = Counting(on_hang="restart", checkpoint=20, saves=True).run(95)
    reached = scene.ranks[0].reached
    numbered = restarted(Accounted(on_hang="restart", checkpoint=20, saves=True).run(95))
    incident = restarted(scene)
    assert numbered.steps_lost is not None
    assert incident.steps_lost == pytest.approx(numbered.steps_lost, abs=2)
    assert incident.steps_lost == pytest.approx(reached % 20, abs=2)
    lost = scene.run(5).spent["lost_steps"]
    assert lost == pytest.approx(incident.steps_lost, abs=2.5)
    again = restarted(scene.run(30))
    assert again.steps_lost is not None
    assert again.steps_lost < 20, "steps of the second attempt are counted on from those that were kept"
    assert scene.job.ledger.furthest > reached


def test_the_ledger_of_such_a_job_survives_the_store() -> None:
    scene = Counting(on_hang="restart", checkpoint=20, saves=True).run(95)
    restarted(scene)
    scene.run(10).reload().run(10)
    assert scene.job.ledger.offset > 70
    assert scene.job.ledger.reached > scene.job.ledger.offset


@pytest.mark.parametrize("steps", [True, False])
def test_a_first_step_is_one_only_where_steps_are_counted(steps: Any) -> None:
    scene = Accounted(steps=steps).run(20)
    assert bool((scene.job.columns.first_iteration_R >= 0).all()) is steps
    assert not scene.job.columns.counted_R.any()
