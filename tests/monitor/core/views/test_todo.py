"""The next action of a person about a job, in a few words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Cause, ProcessEventKind, ScoreReference
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views import job_view

NOT_YET = (
    "If it stays slow, do not restart without host-1: 1 of 2 nodes with the same batch per rank gives 50 % of full "
    "speed, the slow job 60 %; mend host-1 or add a spare first."
)


def todo(scene: Scene) -> dict[str, Any] | None:
    found: dict[str, Any] | None = job_view.summary(scene.job, scene.now)["todo"]
    return found


def hung() -> Scene:
    return Scene(4, hosts=2, on_hang="log").run(20).hang(2).until_found().run(30)


def quiet() -> Scene:
    return Scene(4, hosts=2, on_hang="log").run(30).cut_host(1).run(25)


def lost() -> Scene:
    return Scene(4, hosts=2).run(30).cut_host(0).cut_host(1).run(400)


def failed() -> Scene:
    scene = Scene(4, hosts=2).run(20).die(2, exit_code=1, message="CUDA error").run(1)
    scene.finish(ProcessEventKind.FAILED, "rank 2 on host-1 exited with code 1: CUDA error; no restart is allowed")
    return scene


def slow() -> Scene:
    scene = Scene(4, hosts=2).run(20)
    scene.job.performance.stragglers.append(
        Straggler("s", 3, "host-1", "", Cause.DATA, ScoreReference.ROBUST, "Its input is slow.", 5.0, 6.0, share=0.4)
    )
    return scene


@pytest.mark.parametrize(
    ("make", "text", "action", "ranks", "host", "then"),
    [
        (hung, "Restart the ranks", "restart", [2], "", ""),
        (quiet, "Check whether node host-1 is up", None, [], "host-1", ""),
        (lost, "Check whether the job still runs", None, [], "", ""),
        (failed, "Read what rank 2 logged, in the output of the launcher on host-1", None, [], "", ""),
        (slow, "Look at what feeds rank 3 on host-1", None, [], "", NOT_YET),
    ],
)
def test_the_first_clause_of_what_the_job_proposes_with_its_order(
    make: Callable[[], Scene], text: str, action: str | None, ranks: list[int], host: str, then: str
) -> None:
    assert todo(make()) == {"text": text, "action": action, "ranks": ranks, "host": host, "then": then}


def test_nothing_is_left_to_a_person_while_all_is_well_or_rankwatch_acts() -> None:
    scene = Scene(4, hosts=2).run(20)
    assert todo(scene) is None
    scene.hang(2).until(lambda: scene.state == "restarting")
    assert todo(scene) is None
    finished = Scene(4, hosts=2).run(20)
    finished.finish()
    assert todo(finished) is None


def test_it_stays_as_it_is_while_nothing_happens() -> None:
    """A summary is sent again whenever it changes."""
    for scene in (hung(), quiet(), slow()):
        before = todo(scene)
        assert todo(scene.run(3)) == before
