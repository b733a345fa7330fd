"""Re-run state machine: computes a rejected result again, to distinguish a faulty device from a correct result.

The interface is that of Megatron's ``megatron.core.rerun_state_machine``; ``docs/rerun.md`` describes its use and the
differences. Enters: results of a training step and a function that rejects them; leaves: a verdict and an exit code.
It needs neither a launcher nor a monitor, and importing it imports no torch. Start with ``state_machine.py``.
"""

from __future__ import annotations

from rankwatch.rerun.data import RerunDataIterator
from rankwatch.rerun.injection import RerunErrorInjector
from rankwatch.rerun.megatron import (
    destroy_rerun_state_machine,
    get_rerun_state_machine,
    initialize_rerun_state_machine,
    replace_megatron,
)
from rankwatch.rerun.state_machine import RerunStateMachine
from rankwatch.rerun.validation import ResultRejectedError
from rankwatch.rerun.verdicts import (
    EXIT_CODE_FAILED_ON_RESULT_VALIDATION,
    EXIT_CODE_RESUME_TO_DISAMBIGUATE,
    RerunDiagnostic,
    RerunMode,
    RerunState,
    RerunValidationStatus,
)

__all__ = [
    "EXIT_CODE_FAILED_ON_RESULT_VALIDATION",
    "EXIT_CODE_RESUME_TO_DISAMBIGUATE",
    "RerunDataIterator",
    "RerunDiagnostic",
    "RerunErrorInjector",
    "RerunMode",
    "RerunState",
    "RerunStateMachine",
    "RerunValidationStatus",
    "ResultRejectedError",
    "destroy_rerun_state_machine",
    "get_rerun_state_machine",
    "initialize_rerun_state_machine",
    "replace_megatron",
]
