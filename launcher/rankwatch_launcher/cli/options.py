"""What a launcher may be told besides the policy: each option with its default, unit and meaning in one place.

The flags of ``rankwatch run``, their ``RANKWATCH_*`` variables and the table in ``docs/reference.md`` are made from the
fields of :class:`Options` that have a meaning. Imports no torch: the job-retry loop reads options too.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from rankwatch.contract.policy import timeout
from rankwatch_launcher.prewarm.bootstrap import stand_in
from rankwatch_launcher.prewarm.pool import StandbySettings

OFF: Final = "none"
MAX_COUNT: Final = 10_000
UNCAUGHT: Final = (signal.SIGKILL, signal.SIGSTOP)
"""No process can be told anything by them."""


def whole_number(text: str) -> int:
    """Read a count.

    Raises:
        ValueError: it is none; the text says what would be.
    """
    if not (text.isascii() and text.isdigit()) or int(text) > MAX_COUNT:
        raise ValueError(f"must be a whole number from 0 to {MAX_COUNT}, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Read a time.

    Raises:
        ValueError: it is none; the text says what would be.
    """
    return timeout("it", text)


def signal_name(text: str) -> str:
    """Read a signal, written ``SIGTERM``, ``TERM``, ``term`` or ``15``, as ``SIGTERM``.

    Raises:
        ValueError: there is no such signal.
    """
    word = text.strip().upper()
    try:
        if word.isascii() and word.isdigit():
            return signal.Signals(int(word)).name
        return signal.Signals[word if word.startswith("SIG") else f"SIG{word}"].name
    except (ValueError, KeyError):
        raise ValueError(f"must be a signal such as SIGTERM, TERM or 15, not {text!r}") from None


def stop_signal(text: str) -> str:
    """Read a signal that a process can act on, or ``none`` as the empty text.

    Raises:
        ValueError: there is no such signal, or no process can catch it.
    """
    if text.strip().lower() == OFF:
        return ""
    name = signal_name(text)
    if signal.Signals[name] in UNCAUGHT:
        raise ValueError(f"{name} cannot be caught, so it cannot ask anybody to save and stop; SIGTERM or SIGUSR1 can")
    return name


def _option(default: Any, metavar: str, meaning: str, read: Callable[[str], Any] = str, unit: str = "") -> Any:
    return field(default=default, metadata={"metavar": metavar, "meaning": meaning, "read": read, "unit": unit})


@dataclass(frozen=True)
class Options:
    """What Rankwatch was told on the command line and in the environment."""

    monitor_url: str = ""
    token: str = ""
    job_id: str = ""
    """Empty: taken from the scheduler or the rendezvous, else made up by the first launcher."""
    job_name: str = "train"
    policy: dict[str, Any] = field(default_factory=dict)
    standby: StandbySettings | None = None

    auto: bool = _option(
        False,
        "",
        "watch a script that was never touched: its steps and sections are found through torch's hooks (docs/auto.md)",
    )
    stand_in: str = _option(
        "", "NAME", "imports of nvidia_resiliency_ext find Rankwatch: nvrx (docs/migrate-from-nvrx.md)", stand_in
    )
    job_retries: int = _option(
        0, "N", "launch the job again up to N times when it has failed for good (docs/restarts.md)", whole_number
    )
    outcome: str = _option(
        "", "FILE", "how the launcher ended is written into this file, as JSON; {node} in it stands for the node's name"
    )
    finished_flag: str = _option(
        "",
        "FILE",
        "file whose existence says that training is complete: no launcher starts anything while it exists "
        "(also FAULT_TOL_FINISHED_FLAG_FILE)",
    )
    complete_on_success: bool = _option(
        False, "", "training is complete when all ranks have ended with exit code 0: then write the finished flag"
    )
    spares: int = _option(
        0, "K", "launchers beyond the largest number of nodes that wait as hot spares for a place", whole_number
    )
    node_timeout: float = _option(
        6.0, "SECONDS", "a launcher that the others have not heard of for so long is lost", seconds, "s"
    )
    stop_signal: str = _option(
        "SIGTERM",
        "NAME",
        "signal to a launcher that means: let all ranks save at the end of a step, then stop; none switches it off",
        stop_signal,
    )
    stop_grace: float = _option(
        50.0, "SECONDS", "what ranks get to reach the agreed step and save once such a signal has come", seconds, "s"
    )
    rank_termination_signal: str = _option(
        "SIGKILL", "NAME", "signal that ends the ranks of a failed attempt, once their stacks are taken", signal_name
    )
