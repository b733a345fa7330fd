"""An incident in a few words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, CulpritClass, LimitSource, VerdictKind
from rankwatch_monitor.core.cause import (
    Behind,
    Cause,
    Detection,
    Exited,
    GilHeld,
    InKernel,
    NeverStarted,
    Rejected,
    Silent,
    Slow,
    Stopped,
    class_of,
)
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.views.incident_label import LONGEST, label
from rankwatch_monitor.core.views.incident_view import shown


def hung(**policy: object) -> Scene:
    return Scene(4, hosts=2, **policy).run(20).hang(3)  # type: ignore[arg-type]


def test_a_hang_is_labelled_by_its_rank_and_place_and_by_the_function_once_stacks_are_known() -> None:
    scene = hung(on_hang="log").until_found()
    assert label(scene.incident) == "rank 3 hung in load_batch"
    assert shown(scene.job, scene.incident, scene.now)["label"] == label(scene.incident)
    assert label(hung(observe_only=True).until_found().incident) == "rank 3 hung in step"


def test_a_suspicion_is_labelled_as_one_and_where_no_rank_is_to_blame_by_their_number() -> None:
    doubtful = hung(section_timeouts={}, reports_durations=True)
    doubtful.until(lambda: doubtful.job.incidents and doubtful.incident.culprits, within=400)
    assert label(doubtful.incident).startswith("rank 3 suspected in ")
    nobody = replace(doubtful.incident, culprits=(), confirmed=True)
    assert label(nobody) == f"{len(nobody.affected)} rank{'s' * (len(nobody.affected) > 1)} hung in {nobody.section}"


def test_faults_of_processes_hosts_and_orders_have_labels_of_their_own() -> None:
    crashed = Scene(4, hosts=2).run(20)
    crashed.die(3, exit_code=1, message="KeyError: 1").run(1)
    assert label(crashed.incident) == "rank 3 crashed"
    silent = Scene(8, hosts=2, on_hang="log", silence_timeout=9.0).run(30).cut_host(1)
    silent.until(lambda: silent.job.incidents and silent.incident.culprits)
    assert label(silent.incident) == "host-1 lost"
    ordered = Scene(4, hosts=2).run(20)
    ordered.order(Action.CAPTURE)
    assert label(ordered.incident) == "capture ordered"


CAUSES = (
    Exited(1), Stopped(), NeverStarted(), InKernel("h"), GilHeld(3.0), Silent(60.0), Behind(1, 3),
    Slow("Rank 3 is slow."), Rejected("Not equal."),
)  # fmt: skip


def test_each_class_has_a_cause_here() -> None:
    assert {class_of(cause) for cause in CAUSES} == {*CulpritClass}


@pytest.mark.parametrize("kind", VerdictKind)
@pytest.mark.parametrize("cause", CAUSES, ids=class_of)
def test_each_label_is_short_and_in_plain_words(kind: VerdictKind, cause: Cause) -> None:
    culprits = tuple(Culprit(rank, f"{'very-long-name-of-a-host' * 3}", cause) for rank in (3, 5, 9))
    found_in = Detection(kind, 1, "h", "forward", 1.0, 2.0, LimitSource.CONFIGURED)
    for some in ((), culprits[:1], culprits):
        found = label(Incident("i", "j", kind, 1, 5.0, "Why.", culprits=some, affected=(1, 2), found=found_in))
        assert found
        assert len(found) <= LONGEST
        assert "_" not in found
        assert "None" not in found
