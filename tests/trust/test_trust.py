"""A twelfth of the scripts, in turn: nothing healthy is disturbed, everything sick is found and named.

``TRUST_TURN`` (0 to 11) chooses the twelfth; by default it is that of the day. ``benchmarks/trust_suite.py`` runs all.
"""

from __future__ import annotations

import datetime
import os

import pytest

from support.forked_ranks import run_command
from trust.runner import run
from trust.scripts import Script, scripts

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TURNS = 12
TURN = int(os.environ.get("TRUST_TURN", datetime.datetime.now(datetime.UTC).toordinal() % TURNS))
TOO_LONG = ("sick/infinite_loop",)
"""It takes six minutes."""


def in_turn() -> list[Script]:
    return [script for script in scripts() if script.name not in TOO_LONG][TURN::TURNS]


@pytest.mark.parametrize("script", in_turn(), ids=lambda script: script.name)
def test_a_script_gets_the_right_verdict(script: Script) -> None:
    result = run(script, run_command(), patience=200.0)
    assert result.right, result
