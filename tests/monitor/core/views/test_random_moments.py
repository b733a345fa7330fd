"""What is shown of a job at random moments of runs with random faults agrees with the job's state, and with itself."""

from __future__ import annotations

import json
import random
import re
from typing import Final

import numpy as np
import pytest

from monitor.core.scene import Scene
from rankwatch_monitor.core.incident.lifecycle import verdicts_of
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.views import job_view, rankings
from rankwatch_monitor.core.views.headline import LONGEST
from rankwatch_monitor.core.views.incident_view import shown
from rankwatch_monitor.publish.text import report

RANKS: Final = 6
SECONDS: Final = 240
STANDS: Final = {"hung", "no step", "restarting", "lost", "failed", "stopped"}
COUNTS: Final = re.compile(r"\((\d+) others? too\)|the (\d+) other ranks|in which (\d+) ranks? wait")


def fault(scene: Scene, chance: random.Random) -> None:
    """One fault, or the end of those before."""
    if scene._blocked():
        scene.resume()
        return
    rank = chance.randrange(RANKS)
    match chance.randrange(8):
        case 0:
            scene.hang(rank)
        case 1:
            scene.hang(rank, outside=True)
        case 2:
            scene.stop(rank)
        case 3:
            scene.hold_gil(rank)
        case 4:
            scene.stall()
        case 5:
            scene.die(rank, exit_code=1)
        case 6:
            scene.cut(rank)
        case _:
            scene.cut_host(chance.randrange(scene.hosts))


def check(scene: Scene) -> None:
    """Compare everything that is shown now with the job's state."""
    job, now = scene.job, scene.now
    summary, incidents = job_view.summary(job, now), [shown(job, each, now) for each in job.incidents]
    json.dumps(plain([summary, incidents, job_view.ranks(job, now), job_view.goodput(job, now)]), allow_nan=False)
    state, speed, incident = summary["state"], summary["iterations_per_second"], job.open_incident

    # A job that does not advance is neither healthy nor fast.
    assert state not in STANDS or summary["verdict"] != "healthy", state
    assert summary["verdict"] == rankings.score_table(job, now)["finding"].verdict
    assert state not in STANDS or not speed or job.pace.stepped_at > incident.opened_at, (state, speed)  # type: ignore[union-attr]
    assert speed is None or 0.0 <= speed <= 3.0, f"a step takes a second, and {speed} were shown"

    # Headlines are short, and there is one for every state that is explained.
    assert len(summary["headline"]) <= LONGEST
    assert bool(summary["headline"]) == bool(summary["reason"])
    text = report.text(job, now)
    assert f"is {state.upper()}" in text.splitlines()[0]

    # Ranks: those that are named exist, and no sentence counts more of them than there are.
    world = summary["world_size"]
    codes_R = job_view.rank_states(job, verdicts_of(job, now), now)
    assert len(codes_R) == world
    blamed = {c.rank for c in incident.culprits} if incident and incident.attempt == job.attempt else set()
    hung = set(np.flatnonzero(codes_R == job_view.RANK_STATES.index("hung")).tolist())  # type: ignore[arg-type]
    assert not blamed or hung <= blamed, "a rank that only waits is not shown as hung"
    advice = summary["advice"]
    assert advice is None or advice["text"]
    assert advice is None or all(0 <= rank < RANKS for order in advice["orders"] for rank in order["ranks"])
    for each in incidents:
        assert len(each["headline"]) <= LONGEST
        named = [c["rank"] for c in each["culprits"]] + each["affected"]
        assert all(0 <= rank < RANKS for rank in named)
        for counts in COUNTS.findall(each["reason"]):
            assert all(int(count) < RANKS for count in counts if count), each["reason"]


@pytest.mark.parametrize("on_hang", ["restart", "log"])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_shown_agrees_with_the_state(seed: int, on_hang: str) -> None:
    chance = random.Random(f"{seed} {on_hang}")
    learned = bool(seed % 2)
    scene = Scene(RANKS, hosts=2, reports_durations=learned, on_hang=on_hang, max_restarts=4).run(90)
    for _ in range(SECONDS):
        if chance.random() < 0.04:
            fault(scene, chance)
        check(scene.run(1))
    assert scene.job.incidents, "faults changed what is shown"
