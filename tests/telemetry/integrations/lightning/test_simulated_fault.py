from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


@pytest.mark.parametrize(
    "given",
    [
        {"fault_type": "rank_killed", "base_delay": 60.0, "rank_to_fail": 3},
        {"fault_type": "rank_killed", "base_delay": 60.0, "rank": 3},
        SimpleNamespace(fault_type="rank_killed", base_delay=60.0, rank_to_fail=3, something_else=1),
        SimpleNamespace(fault_type="rank_killed", base_delay=60.0, rank=3),
    ],
)
def test_any_shape_of_the_same_fault(given: Any) -> None:
    from rankwatch.integrations.lightning.simulated_fault import (  # imports Lightning, which takes seconds
        SimulatedFaultParams,
        parameters,
    )

    wanted = SimulatedFaultParams("rank_killed", 60.0, 0.0, 3)
    assert parameters(given) == parameters(wanted) == wanted


def test_none_is_no_fault() -> None:
    from rankwatch.integrations.lightning.simulated_fault import parameters

    assert parameters(None) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fault_type": "rank_killed"}, "lacks base_delay"),
        ({"fault_type": "rank_eaten", "base_delay": 1.0}, "kind of a fault must be one of"),
        ({"fault_type": "random", "base_delay": -1.0}, "delay of a fault must be a number of seconds"),
        ({"fault_type": "random", "base_delay": 1.0, "rand_delay": -1.0}, "rand_delay"),
        ({"fault_type": "random", "base_delay": 1.0, "rank_to_fail": -1}, "rank of a fault must be"),
        ({"fault_type": "random", "base_delay": 1.0, "when": 2}, "does not know when"),
        ({"fault_type": "random", "base_delay": 1.0, "rank": 1, "rank_to_fail": 2}, "are aliases"),
    ],
)
def test_what_makes_no_sense_is_refused(given: Any, words: str) -> None:
    from rankwatch.integrations.lightning.simulated_fault import parameters

    with pytest.raises(ValueError, match=words):
        parameters(given)
