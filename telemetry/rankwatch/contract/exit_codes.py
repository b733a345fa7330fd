"""Exit codes of ranks and launchers that mean something of their own; 16 and 17 are those of Megatron's re-runs."""

from __future__ import annotations

from typing import Final

RESUME_ELSEWHERE: Final = 16
"""A result was rejected and came out the same again: resume the job elsewhere to tell a faulty device from a correct
result (``EXIT_CODE_RESUME_TO_DISAMBIGUATE``). Of a rank, then of its launcher."""
RESULT_REJECTED: Final = 17
"""A result was found to be wrong, and why is known (``EXIT_CODE_FAILED_ON_RESULT_VALIDATION``). Of both, too."""
DO_NOT_REQUEUE: Final = 93
"""Another launch would end the same way."""
