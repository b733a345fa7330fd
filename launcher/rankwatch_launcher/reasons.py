"""Sentences about exits, restarts and stops. Pure: log line, process event and ledger show the same words."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

ABORT_AT_EXIT = (
    "; it had finished before, so this looks like the abort that destroy_process_group() sometimes ends in at exit: "
    "its results are likely complete"
)


@dataclass(frozen=True, slots=True)
class Exit:
    """How one rank's process ended."""

    rank: int
    local_rank: int
    pid: int
    code: int
    """The exit code, or minus the number of the signal that ended it."""
    message: str = ""
    """What the rank itself left in its error file."""
    had_finished: bool = False
    """The rank had called rankwatch.shutdown(), or all its peers on the node had ended well."""

    @property
    def signal(self) -> str | None:
        """Name of the signal that ended it, if one did."""
        return signal_name(-self.code) if self.code < 0 else None

    @property
    def first_line(self) -> str:
        """The first line of what the rank left, cut to what a sentence can hold."""
        lines = self.message.strip().splitlines()
        # A path in an error may hold bytes that are no text; nothing of that may stop a message on its way.
        return lines[0][:200].encode("utf-8", "backslashreplace").decode() if lines else ""


def signal_name(number: int) -> str:
    """The name of a signal, for example SIGKILL; of an unnamed real-time signal its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exited(exit_: Exit, host: str) -> str:
    """Say how a rank ended."""
    who = f"rank {exit_.rank} (local rank {exit_.local_rank}, pid {exit_.pid}) on {host}"
    if exit_.code < 0:
        sentence = f"{who} was killed by {exit_.signal}"
        return sentence + ABORT_AT_EXIT if exit_.code == -signal.SIGABRT and exit_.had_finished else sentence
    sentence = f"{who} exited with code {exit_.code}"
    return f"{sentence}: {exit_.first_line}" if exit_.first_line else sentence


def crashed(exits: Sequence[Exit], host: str) -> str:
    """Say which rank crashed first and how many went with it."""
    others = len(exits) - 1
    return exited(exits[0], host) + (f" ({others} more at the same moment)" if others else "")


def out_of_budget(reason: str, max_restarts: int) -> str:
    """Say that a restart was due but none is left."""
    if max_restarts == 0:
        return f"{reason}; no restart is allowed (--max-restarts 0)"
    return f"{reason}; all {max_restarts} restarts are used up (--max-restarts)"


def restarting(reason: str, attempt: int, used: int, max_restarts: int, incident: str | None) -> str:
    """The launcher's line before it ends the ranks to start them anew."""
    return f"restarting all ranks after attempt {attempt}: {reason}{_of(incident)} (restart {used} of {max_restarts})"


def regrouping(reason: str, attempt: int) -> str:
    """The launcher's line before a restart that is nobody's fault."""
    return f"restarting all ranks after attempt {attempt}: {reason}"


def ending(word: str, reason: str, incident: str | None) -> str:
    """The launcher's line before it ends the ranks for good; ``word`` is failed or stopped."""
    return f"the job has {word}: {reason}{_of(incident)}" if word == "failed" else f"stopping: {reason}{_of(incident)}"


def _of(incident: str | None) -> str:
    return f" [incident {incident}]" if incident else ""
