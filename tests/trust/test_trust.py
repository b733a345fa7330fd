"""A share of the scripts, in turn: nothing healthy is disturbed, everything sick is found, named and treated rightly.

``TRUST_TURN`` (0 to 23) chooses the share; by default it is that of the commit. ``benchmarks/trust_suite.py`` runs all.
"""

from __future__ import annotations

import os

import pytest

from support.forked_ranks import run_command
from support.turns import turn_of_commit
from trust.runner import run
from trust.scripts import AT_FAULT, HERE, KINDS, PROVABLE_AFTER, REPEATS, Script, scripts

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

TURNS = 24
TURN = int(os.environ.get("TRUST_TURN", turn_of_commit(TURNS)))
TOO_LONG = ("sick/infinite_loop",)
"""It takes eight minutes."""


def in_turn() -> list[Script]:
    return [script for script in scripts() if script.name not in TOO_LONG][TURN::TURNS]


def test_expectations_are_those_of_scripts_that_exist() -> None:
    names = {folder: {path.stem for path in (HERE / folder).glob("*.py")} for folder in ("healthy", "sick")}
    assert AT_FAULT.keys() == names["sick"]
    assert KINDS.keys() | PROVABLE_AFTER.keys() <= names["sick"]
    assert names["healthy"] >= REPEATS
    assert all(script.does for script in scripts())


@pytest.mark.parametrize("script", in_turn(), ids=lambda script: script.name)
def test_a_script_gets_the_right_verdict(script: Script) -> None:
    result = run(script, run_command(), patience=200.0)
    assert result.right, result
