"""Ranks that call different collectives: the one that differs from the others is named, with both calls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.story import assert_blamed
from e2e.training import STEP_LIMIT, Training
from support.forked_ranks import run_command

SCRIPT = Path(__file__).with_name("mismatched.py")


def line_with(text: str) -> int:
    (found,) = [number for number, line in enumerate(SCRIPT.read_text().splitlines(), 1) if text in line]
    return found


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (
            "barrier",
            rf"it is in 'barrier' called at mismatched\.py:{line_with('dist.barrier()  # other')}, while 3 ranks are "
            rf"in 'all_reduce' called at mismatched\.py:{line_with('# most ranks')}, both as number \d+ of group "
            r"'default_pg'",
        ),
        (
            "group",
            r"it has not entered 'all_reduce' number \d+ of group 'default_pg', in which 3 ranks wait; it waits in "
            rf"'all_reduce' number 1 of group '\w+' called at mismatched\.py:{line_with('group=pair')} instead",
        ),
        (
            "order",
            r"it has not entered 'all_reduce' number \d+ of group '\w+', in which 1 rank waits; it waits in "
            rf"'all_reduce' number \d+ of group 'default_pg' called at mismatched\.py:{line_with('# too early')} "
            "instead, so the ranks wait for each other in a circle, and it alone entered the groups in another order "
            "than before",
        ),
    ],
)
def test_the_rank_that_calls_another_collective_is_named(watched: Training, other: str, reason: str) -> None:
    assert watched.api is not None
    limits = ("--section-timeout", f"step={STEP_LIMIT}", "--on-hang", "stop")
    where = ("--nproc-per-node", "4", "--monitor", str(watched.api.base_url), "--job-id", watched.job)
    launcher = watched.start([*run_command(), *where, *limits, str(SCRIPT), other, "50"])
    assert launcher.wait() != 0
    incident = watched.incident()
    assert_blamed(incident, 1, "behind")
    assert re.fullmatch(reason, incident["culprits"][0]["reason"]), incident["reason"]
