"""Re-run state machine: a rejected result is computed again, to tell a faulty device from a correct result.

The surface is that of Megatron's ``megatron.core.rerun_state_machine``; see ``docs/rerun.md`` for how it is used and
where it differs. It needs neither a launcher nor a monitor. Importing it imports no torch.
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
from rankwatch.rerun.statistics import DeterminismStatistics, Differences
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
    "DeterminismStatistics",
    "Differences",
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
