"""What incidents say of the time, in scenes: hangs, stalls, suspicions that steps refute."""

from __future__ import annotations

import pytest

from monitor.core.accounted import STARTUP, Accounted, about
from rankwatch.contract.enums import DirectiveKind, ProcessEventKind


def test_an_incident_that_goes_away_by_itself_was_a_stall() -> None:
    scene = Accounted(on_hang="log").run(60).hang(2).run(40)
    assert scene.spent["hang"] == pytest.approx(40.0), "nothing is done about it: it lasts"
    scene.resume().run(50)
    assert scene.spent["stalled"] == pytest.approx(40.0, abs=1.0)
    assert "hang" not in scene.spent


def test_a_hang_that_is_only_recorded_until_the_job_is_killed() -> None:
    scene = Accounted(on_hang="log").run(60).hang(2).run(40)
    scene.finish(ProcessEventKind.FAILED, "killed by hand")
    assert scene.spent == about(startup=STARTUP, productive=58.5, hang=40.0)


def test_while_steps_go_on_no_suspicion_makes_the_time_unproductive() -> None:
    scene = Accounted(silence_timeout=20.0, on_hang="log").run(60).cut(2).until_found()
    scene.run(60)
    assert scene.job.open_incident is not None
    assert set(scene.spent) == {"startup", "productive"}


def test_launchers_that_do_not_obey_are_handling_for_as_long() -> None:
    scene = Accounted().run(60)
    scene.ignored.add(DirectiveKind.RESTART)
    scene.hang(2).until_found()
    scene.run(100)
    assert scene.spent["hang"] == pytest.approx(11.0)
    assert scene.spent["handling"] == pytest.approx(100.0)
