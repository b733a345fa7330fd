"""What /proc says about a process, without touching it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rankwatch.contract.enums import ProcessState

_STATES: Final = {
    "T": ProcessState.STOPPED,
    "t": ProcessState.STOPPED,
    "D": ProcessState.UNINTERRUPTIBLE,
    "Z": ProcessState.EXITED,
    "X": ProcessState.EXITED,
}


def process_state(pid: int) -> ProcessState:
    """The state of a process; ``EXITED`` when there is none, ``UNKNOWN`` when /proc cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return ProcessState.EXITED if Path("/proc/self").exists() else ProcessState.UNKNOWN
    except OSError:
        return ProcessState.UNKNOWN
    return state_of(stat)


def state_of(stat: str) -> ProcessState:
    """The state in a line of ``/proc/PID/stat``: the letter after the command, which may itself hold parentheses."""
    rest = stat.rpartition(")")[2].split()
    return _STATES.get(rest[0], ProcessState.ALIVE) if rest else ProcessState.UNKNOWN


def catches(pid: int, signal_number: int) -> bool:
    """Whether the process has a handler for a signal (SigCgt); without one the signal would end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return caught_in(status, signal_number)


def caught_in(status: str, signal_number: int) -> bool:
    """Whether the text of ``/proc/PID/status`` shows the signal as caught."""
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal_number - 1) & 1)
    return False
