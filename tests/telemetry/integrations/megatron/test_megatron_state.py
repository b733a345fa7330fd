from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch.integrations.megatron.state import FaultToleranceState, timeout_update

SEEN_ALL = {"is_persistent_chkpt_loaded": True, "seen_tr_iters_cnt": 16, "seen_checkpoints_cnt": 1}


@pytest.mark.parametrize(
    ("changes", "at_end", "sections", "outside"),
    [
        ({}, False, ("setup", "step", "checkpointing"), False),
        ({}, True, ("setup", "step", "checkpointing"), True),
        ({"is_persistent_chkpt_loaded": False}, True, ("step", "checkpointing"), False),
        ({"seen_tr_iters_cnt": 15}, True, ("setup", "checkpointing"), False),
        ({"seen_checkpoints_cnt": 0}, True, ("setup", "step"), False),
        ({"is_async_chkpt_enabled": True}, True, ("setup", "step"), True),
        ({"is_async_chkpt_enabled": True}, False, ("setup", "step"), False),
    ],
)
def test_what_a_run_lets_one_calculate(
    changes: dict[str, Any], at_end: bool, sections: tuple[str, ...], outside: bool
) -> None:
    plan = timeout_update(FaultToleranceState(**{**SEEN_ALL, **changes}), at_end=at_end)
    assert (plan.sections, plan.out_of_section) == (sections, outside)
    assert len(plan.skipped) == 4 - len(sections) - outside, "each that is left out is explained"


def test_bridges_object_gets_all_fields() -> None:
    theirs = SimpleNamespace(seen_tr_iters_cnt=7)
    FaultToleranceState().copy_to(theirs)
    assert vars(theirs) == vars(FaultToleranceState())
