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
    """What the rank itself has told before it ended, or left in its error file."""
    had_finished: bool = False
    """The rank had called rankwatch.shutdown(), or all its peers on the node had ended well."""
    spared: bool = False
    """The other ranks go on without it: a reserve takes its place within the same processes."""

    @property
    def signal(self) -> str | None:
        """Name of the signal that ended it, if one did."""
        return signal_name(-self.code) if self.code < 0 else None

    @property
    def first_line(self) -> str:
        """The first line of what the rank left, cut to what a sentence can hold."""
        lines = self.message.strip().splitlines()
        # A path in an error may hold bytes that are no text; nothing of that may stop a message on its way.
        return lines[0][:400].encode("utf-8", "backslashreplace").decode() if lines else ""


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


def spared(exit_: Exit, host: str) -> str:
    """Say that a rank ended and nothing is restarted for it."""
    return f"{exited(exit_, host)}; the other ranks go on, a reserve takes its place in the same processes"


def out_of_budget(reason: str, max_restarts: int) -> str:
    """Say that a restart was due but none is left."""
    if max_restarts == 0:
        return f"{reason}; no restart is allowed (--max-restarts 0)"
    return f"{reason}; all {max_restarts} restarts are used up (--max-restarts)"


def resume_elsewhere(exit_: Exit, host: str, elsewhere: bool) -> str:
    """Say what exit code 16 means."""
    asks = f"{exited(exit_, host)}: it asks to be resumed elsewhere, to tell a faulty device from a correct result"
    return asks if elsewhere else f"{asks}, and the job has no other node"


def result_rejected(exit_: Exit, host: str) -> str:
    """Say what exit code 17 means."""
    return f"{exited(exit_, host)}: it found a result to be wrong, so the job is not run again by itself"


def no_progress(reason: str, attempts: int, step: int) -> str:
    """Say that a restart was due, and why another one would not help."""
    return f"{reason}; {attempts} attempts in a row got no further than step {step} (--max-no-progress {attempts})"


def node_lost(node: str, host: str, silence: float) -> str:
    """Say that a launcher is not heard of any more."""
    return f"node {node} on {host} is lost: its launcher has given no sign for {silence:.1f} s"


def node_left(node: str, host: str, why: str) -> str:
    """Say that a launcher ended before the job did."""
    return f"node {node} on {host} has left: {why}"


def node_joins(node: str, host: str) -> str:
    """Say why nodes regroup."""
    return f"node {node} on {host} waits to join"


def preempted(host: str, signal_name: str) -> str:
    """Say that a signal asks for the job to save and stop."""
    return f"preempted: the launcher on {host} got {signal_name}"


def rank_preempted(rank: int, host: str, signal_name: str) -> str:
    """The same, of a signal that reached the ranks instead."""
    return f"preempted: rank {rank} on {host} got {signal_name}"


def rank_asks(rank: int, host: str, what: str, reason: str) -> str:
    """Say what a rank asked for."""
    return f"rank {rank} on {host} asked {what}" + (f": {reason.rstrip('. ')}" if reason.strip() else "")


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
