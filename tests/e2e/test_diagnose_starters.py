"""``rankwatch diagnose`` at jobs that neither Rankwatch nor torchrun started: hung, in a circle, healthy.

All end with everything that they started. Ranks of plain multiprocessing are started the last one first, so that one
which is numbered by the order of its start has another rank's number.
"""

from __future__ import annotations

import pytest

from e2e.test_diagnose import HANGS, HEALTHY, Start, named, start
from support.starters import STARTERS, missing

__all__ = ["start"]
RECEIVES = """
for step in range(1000):
    if step == 20:
        ready()
        if rank == 1:
            dist.recv(value, 0)
    dist.all_reduce(value)
"""
RANKS = 4


def by(*starters: str) -> list[object]:
    """These, without those of which a program is not installed."""
    return [
        pytest.param(each, marks=[pytest.mark.skipif(bool(missing(each)), reason=f"without {missing(each)}")])
        for each in starters
    ]


def test_a_rank_that_only_its_own_environment_numbers_is_named(start: Start) -> None:
    code, found = start(HANGS, start="fork", ranks=RANKS).diagnosed()
    assert (code, found["verdict"], named(found)) == (3, "trouble", [1]), found["reason"]
    assert found["world_size"] == RANKS


@pytest.mark.long
@pytest.mark.parametrize("starter", by(*(each for each in STARTERS if each != "fork")))
def test_the_rank_that_hangs_is_named(start: Start, starter: str) -> None:
    code, found = start(HANGS, start=starter, ranks=RANKS).diagnosed()
    assert (code, found["verdict"], named(found)) == (3, "trouble", [1]), found["reason"]
    assert found["world_size"] == RANKS


@pytest.mark.long
@pytest.mark.parametrize("starter", by(*STARTERS))
def test_a_message_that_nobody_sends_is_a_circle_of_two(start: Start, starter: str) -> None:
    code, found = start(RECEIVES, start=starter, ranks=RANKS).diagnosed()
    assert (code, found["verdict"], named(found)) == (3, "trouble", []), found["reason"]
    calls = [(made["operation"], made["among"], ranks["first"]) for made, ranks in found["why_none"]["why"]["calls"]]
    assert calls == [("all_reduce", None, [0, 2, 3]), ("recv", {"ranks": 0, "group": "", "peer": 0}, [1])]


@pytest.mark.long
@pytest.mark.parametrize("starter", by(*STARTERS))
def test_a_healthy_job_is_called_so_and_ends_as_it_would(start: Start, starter: str) -> None:
    job = start(HEALTHY, start=starter, ranks=RANKS)
    for _ in range(3):
        code, found = job.diagnosed()
        assert (code, found["verdict"], named(found)) == (0, "healthy", []), found["reason"]
    job.stop.touch()
    assert job.process.wait(100) == 0, job.log.read_text()
