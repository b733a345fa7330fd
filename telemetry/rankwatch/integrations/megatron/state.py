"""State of a run between the Megatron hooks, and the timeouts that can be calculated from it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from rankwatch.contract.semconv import CHECKPOINTING_SECTION, SETUP_SECTION, STEP_SECTION

MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE: Final = 16
"""Iterations before the timeout of ``step`` is calculated from them."""


@dataclass
class FaultToleranceState:
    """The part of a run that timeouts depend on. The fields are those of Bridge's state."""

    ft_state_path: str | None = None
    is_persistent_chkpt_loaded: bool = False
    is_async_chkpt_enabled: bool = False
    is_calculating_timeouts: bool = False
    is_setup_section_open: bool = False
    seen_checkpoints_cnt: int = 0
    seen_tr_iters_cnt: int = 0
    curr_eval_iter_idx: int = 0

    def copy_to(self, other: Any) -> None:
        """Set all fields on another object."""
        for each in fields(self):
            setattr(other, each.name, getattr(self, each.name))


@dataclass(frozen=True)
class TimeoutUpdate:
    """The timeouts to calculate now, and why others are not."""

    sections: tuple[str, ...]
    out_of_section: bool
    skipped: tuple[str, ...]


def timeout_update(state: FaultToleranceState, *, at_end: bool) -> TimeoutUpdate:
    """Return the timeouts that can be calculated from a run.

    ===============  ==============================================================================================
    setup            after a checkpoint was loaded from storage: a setup without one is shorter
    step             from 16 iterations on
    checkpointing    after a save, unless saves are asynchronous: their duration varies too much
    out of section   at the end of a run that has included setup, step and a save
    ===============  ==============================================================================================
    """
    skipped = []
    sections = []
    if state.is_persistent_chkpt_loaded:
        sections.append(SETUP_SECTION)
    else:
        skipped.append("the timeout of section setup is not updated: no checkpoint was loaded from storage")
    if state.seen_tr_iters_cnt >= MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE:
        sections.append(STEP_SECTION)
    else:
        skipped.append(
            f"the timeout of section step is not updated before {MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE} iterations were"
            f" seen; these are {state.seen_tr_iters_cnt}"
        )
    if state.seen_checkpoints_cnt == 0:
        skipped.append("the timeout of section checkpointing is not updated before a checkpoint was saved")
    elif state.is_async_chkpt_enabled:
        skipped.append("the timeout of section checkpointing is not updated: saves are asynchronous")
    else:
        sections.append(CHECKPOINTING_SECTION)
    complete = {SETUP_SECTION, STEP_SECTION} <= set(sections) and state.seen_checkpoints_cnt > 0
    if not (at_end and complete):
        missing = "setup, step and a save were not all seen" if at_end else "the run is not over"
        skipped.append(f"the timeout outside all sections is not updated: {missing}")
    return TimeoutUpdate(tuple(sections), at_end and complete, tuple(skipped))
