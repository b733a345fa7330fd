"""What was found, in one plain sentence: the same in log, incident and the reason of the rank's exit. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rankwatch.rerun.device import Device
from rankwatch.rerun.verdicts import (
    EXIT_CODE_FAILED_ON_RESULT_VALIDATION,
    EXIT_CODE_RESUME_TO_DISAMBIGUATE,
    Kind,
    Wish,
)

# The verdict first: where a sentence is shown as the reason of an exit, its end may be cut off.
FINDINGS: Final = {
    Kind.TRANSIENT_ERROR: "transient error: {what}, but run again at once on the same device it was {now}",
    Kind.NOT_REPEATED: "no verdict: {what}, but run again the step did not come to this check any more",
    Kind.REPRODUCIBLE: "reproducible: {what}, and run again at once on the same device it was the same ({now}); only "
    "another device can tell a persistent error from a correct result",
    Kind.SAME_DEVICE: "still no verdict: {what}, and the step was resumed on the same device, which cannot tell a "
    "persistent error from a correct result",
    Kind.PERSISTENT_ERROR: "persistent error: {what}, but on another device ({here}) it was {now}",
    Kind.CORRECT_RESULT: "correct result: {what}, and on another device ({here}) it was the same ({now}), so data or "
    "code make it what it is",
}
WHAT_NEXT: Final = {
    Wish.GO_ON: "it is not fatal, and training goes on",
    Wish.GIVE_UP: f"the job ends with exit code {EXIT_CODE_FAILED_ON_RESULT_VALIDATION}, for a person to look",
    Wish.FOUND: f"the job ends with exit code {EXIT_CODE_FAILED_ON_RESULT_VALIDATION}, for a person to look",
    Wish.ELSEWHERE: f"exit code {EXIT_CODE_RESUME_TO_DISAMBIGUATE} asks for the job to be resumed from its checkpoint "
    "on another device",
}


@dataclass(frozen=True, slots=True)
class Scene:
    """Who came to a verdict, about what."""

    rank: int
    step: int
    message: str
    """What is validated, in the user's words."""
    value: str
    """The rejected result."""
    first: Device
    """The device that computed it."""
    here: Device
    """The device that ran the step again."""


def rejected(scene: Scene) -> str:
    """A result was rejected, and the step is to be run again."""
    return f"{_who(scene)}: rejected: {_what(scene)}; all ranks run the step again with the same inputs"


def found(scene: Scene, kind: Kind, wish: Wish, now: str) -> str:
    """A rank's verdict; ``now`` is the result of the re-run."""
    finding = FINDINGS[kind].format(what=_what(scene), now=now, here=scene.here)
    return f"{_who(scene)}: {finding}; {WHAT_NEXT[wish]}"


def refused(scene: Scene, *, fatal: bool) -> str:
    """A result was rejected where nothing is run again."""
    follows = "the rank ends" if fatal else "it is not fatal, and training goes on"
    hint = "mode validate_results would tell a faulty device from a correct result"
    return f"{_who(scene)}: rejected: {_what(scene)}; {follows}; {hint}"


def _who(scene: Scene) -> str:
    return f"rank {scene.rank} on {scene.first.host} ({scene.first.name}), step {scene.step}"


def _what(scene: Scene) -> str:
    return f"{scene.message} ({scene.value})"
