"""A third of a choice of the scripts, in turn: nothing healthy is disturbed, everything sick is found and named.

``TRUST_THIRD`` (0, 1 or 2) chooses the third; by default it is that of the day.
"""

from __future__ import annotations

import datetime
import os

import pytest

from support.forked_ranks import run_command
from trust.runner import run
from trust.scripts import Script, scripts

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

STEADY = ("healthy/plain_ddp", "sick/lock", "sick/sigkill")
"""Scripts that got the right verdict 5 of 5 times on a loaded machine."""
THIRD = int(os.environ.get("TRUST_THIRD", datetime.datetime.now(datetime.UTC).toordinal() % 3))


def in_turn() -> list[Script]:
    return [script for i, script in enumerate(each for each in scripts() if each.name in STEADY) if i % 3 == THIRD]


@pytest.mark.parametrize("script", in_turn(), ids=lambda script: script.name)
def test_a_script_gets_the_right_verdict(script: Script) -> None:
    result = run(script, run_command(), patience=200.0)
    assert result.right, result
