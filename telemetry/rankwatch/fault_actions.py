"""What each kind of fault does to this process. The frames have names that are recognised in a captured stack."""

from __future__ import annotations

import os
import signal
import time

from rankwatch.faults import FOREVER, Fault, Kind


class InjectedFaultError(RuntimeError):
    """The exception that a fault of kind ``exception`` raises."""


def carry_out(fault: Fault) -> None:
    """Do to this process what the fault says.

    Raises:
        InjectedFaultError: kind ``exception``.
        SystemExit: kind ``exit``.
    """
    match fault.kind:
        case Kind.HANG:
            rankwatch_injected_hang(fault.seconds or FOREVER)
        case Kind.GIL:
            rankwatch_injected_held_gil(fault.seconds or FOREVER)
        case Kind.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        case Kind.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Kind.EXCEPTION:
            raise InjectedFaultError(f"injected on rank {fault.rank} in step {fault.step}")
        case Kind.EXIT:
            raise SystemExit(fault.code)
        case Kind.SLOW:
            rankwatch_injected_slowness(fault)


def rankwatch_injected_hang(seconds: float) -> None:
    """Sleep on this thread; a signal does not end it."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(left)


def rankwatch_injected_held_gil(seconds: float) -> None:
    """Sleep in C with the GIL held, as an extension stuck in a driver does."""
    import ctypes

    libc = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL during the call
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:  # a signal ends the call early
        if left >= 1:
            libc.sleep(int(left))
        else:
            libc.usleep(int(left * 1e6) + 1)


_last_end: float | None = None


def rankwatch_injected_slowness(fault: Fault) -> None:
    """Sleep for the given seconds, or until the time since the last call is ``factor`` times what it was."""
    global _last_end
    now = time.monotonic()
    own = now - _last_end if _last_end is not None else 0.0
    time.sleep(fault.seconds if fault.seconds is not None else max(0.0, own * ((fault.factor or 1.0) - 1.0)))
    _last_end = time.monotonic()
