"""Messages about rejected results: the same text in the log, the incident and the exit reason of the rank. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rankwatch.rerun.device import Device
from rankwatch.rerun.verdicts import (
    EXIT_CODE_FAILED_ON_RESULT_VALIDATION,
    EXIT_CODE_RESUME_TO_DISAMBIGUATE,
    RerunFinding,
    Vote,
)

# The verdict comes first: exit reasons are truncated.
VERDICTS: Final = {
    RerunFinding.TRANSIENT_ERROR: "transient error: {what}, but run again at once on the same device it was {now}",
    RerunFinding.NOT_REACHED: "no verdict: {what}, but the re-run of the step did not reach this check",
    RerunFinding.REPRODUCIBLE: "reproducible: {what}, and run again at once on the same device it was the same "
    "({now}); only another device can tell a persistent error from a correct result",
    RerunFinding.SAME_DEVICE: "still no verdict: {what}, and the step was resumed on the same device, which cannot "
    "tell a persistent error from a correct result",
    RerunFinding.PERSISTENT_ERROR: "persistent error: {what}, but on another device ({here}) it was {now}",
    RerunFinding.CORRECT_RESULT: "correct result: {what}, and on another device ({here}) it was the same ({now}), so "
    "data or code make it what it is",
}
CONSEQUENCES: Final = {
    Vote.CONTINUE: "it is not fatal, and training continues",
    Vote.FAIL: f"the job ends with exit code {EXIT_CODE_FAILED_ON_RESULT_VALIDATION} for manual inspection",
    Vote.FAULT_FOUND: f"the job ends with exit code {EXIT_CODE_FAILED_ON_RESULT_VALIDATION} for manual inspection",
    Vote.RESUME_ELSEWHERE: f"exit code {EXIT_CODE_RESUME_TO_DISAMBIGUATE} asks for the job to be resumed from its "
    "checkpoint on another device",
}


@dataclass(frozen=True, slots=True)
class RejectionContext:
    """The rank, step and devices that a message names."""

    rank: int
    step: int
    message: str
    """The user's description of what is validated."""
    value: str
    """The rejected result."""
    first: Device
    """The device that computed it."""
    here: Device
    """The device that ran the step again."""


def rejected(context: RejectionContext) -> str:
    """Return the message for a rejected result whose step is run again."""
    return f"{_where(context)}: rejected: {_what(context)}; all ranks run the step again with the same inputs"


def verdict(context: RejectionContext, finding: RerunFinding, vote: Vote, now: str) -> str:
    """Return the message for a verdict; ``now`` is the result of the re-run."""
    text = VERDICTS[finding].format(what=_what(context), now=now, here=context.here)
    return f"{_where(context)}: {text}; {CONSEQUENCES[vote]}"


def not_rerun(context: RejectionContext, *, fatal: bool) -> str:
    """Return the message for a rejected result in mode ``disabled``."""
    follows = "the rank ends" if fatal else "it is not fatal, and training continues"
    hint = "mode validate_results would distinguish a faulty device from a correct result"
    return f"{_where(context)}: rejected: {_what(context)}; {follows}; {hint}"


def _where(context: RejectionContext) -> str:
    return f"rank {context.rank} on {context.first.host} ({context.first.name}), step {context.step}"


def _what(context: RejectionContext) -> str:
    return f"{context.message} ({context.value})"
