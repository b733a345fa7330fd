"""What each kind of fault does to this process. The frames have names that are recognised in a captured stack."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from rankwatch.faults.spec import FOREVER, Fault, Kind


class InjectedFaultError(RuntimeError):
    """The exception that faults of the kinds ``exception`` and ``async_exception`` raise."""


class InjectedAsyncError(InjectedFaultError):
    """What is put into the main thread from outside. CPython takes a class there and makes the exception itself."""

    def __init__(self) -> None:
        super().__init__("injected into the main thread by another one")


class FaultUnavailableError(RuntimeError):
    """This fault cannot be done in this process; the text says what is missing."""


MAIN_THREAD_ONLY: Final = frozenset(
    {Kind.HANG, Kind.EXCEPTION, Kind.EXIT, Kind.UNINTERRUPTIBLE, Kind.GPU_ERROR, Kind.GPU_SLEEP}
)
"""Kinds that befall the thread which carries them out. All others befall the whole process, from any thread."""

_SIGNALS: Final[Mapping[Kind, signal.Signals]] = {
    Kind.STOP: signal.SIGSTOP,
    Kind.KILL: signal.SIGKILL,
    Kind.INT: signal.SIGINT,
    Kind.TERM: signal.SIGTERM,
}


def carry_out(fault: Fault) -> None:
    """Do to this process what the fault says. A random kind must have been drawn before.

    Raises:
        InjectedFaultError: kind ``exception``; kind ``async_exception`` raises it a moment later in the main thread.
        SystemExit: kind ``exit``.
        FaultUnavailableError: something that this kind needs is not there.
    """
    seconds = fault.seconds or FOREVER
    match fault.kind:
        case Kind.STOP | Kind.KILL | Kind.INT | Kind.TERM:
            os.kill(os.getpid(), _SIGNALS[fault.kind])
        case Kind.HANG:
            rankwatch_injected_hang(seconds)
        case Kind.GIL:
            rankwatch_injected_held_gil(seconds)
        case Kind.ABORT:
            os.abort()
        case Kind.SEGFAULT:
            rankwatch_injected_segfault()
        case Kind.UNINTERRUPTIBLE:
            from rankwatch.faults.kernel_wait import rankwatch_injected_uninterruptible

            rankwatch_injected_uninterruptible(seconds)
        case Kind.EXCEPTION:
            raise InjectedFaultError(f"injected on rank {fault.rank} {fault.when()}")
        case Kind.ASYNC_EXCEPTION:
            rankwatch_injected_async_exception()
        case Kind.EXIT:
            raise SystemExit(fault.code)
        case Kind.SLOW:
            rankwatch_injected_slowness(fault)
        case Kind.NETWORK:
            cut_telemetry(seconds)
        case Kind.GPU_ERROR:
            rankwatch_injected_gpu_error()
        case Kind.GPU_SLEEP:
            rankwatch_injected_gpu_sleep(seconds)
        case Kind.RANDOM:
            raise AssertionError("a random kind is drawn by Fault.settled()")


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


def rankwatch_injected_segfault() -> None:
    """Read what is not mapped."""
    import ctypes

    ctypes.string_at(0)


def rankwatch_injected_async_exception() -> None:
    """Have another thread put an exception into the main thread: it is raised between two of its bytecodes."""
    import ctypes

    main = threading.main_thread().ident
    put = ctypes.pythonapi.PyThreadState_SetAsyncExc

    def strike() -> None:
        put(ctypes.c_ulong(main or 0), ctypes.py_object(InjectedAsyncError))

    threading.Thread(target=strike, name="rankwatch-fault", daemon=True).start()


_last_end: float | None = None


def rankwatch_injected_slowness(fault: Fault) -> None:
    """Sleep for the given seconds, or until the time since the last call is ``factor`` times what it was."""
    global _last_end
    now = time.monotonic()
    own = now - _last_end if _last_end is not None else 0.0
    time.sleep(fault.seconds if fault.seconds is not None else max(0.0, own * ((fault.factor or 1.0) - 1.0)))
    _last_end = time.monotonic()


def cut_telemetry(seconds: float) -> Callable[[], None]:
    """Let every export of this process fail for that long, as behind a network that is gone; returns what ends it.

    What waits to be sent is kept as in a real outage, so that it arrives when the cut is over.
    """
    from rankwatch.export.transport import OtlpClient, SendResult, SendStatus

    original = OtlpClient.post
    until = time.monotonic() + seconds

    def post(self: OtlpClient, body: bytes) -> SendResult:
        if time.monotonic() < until:
            return SendResult(SendStatus.RETRY_LATER, "cut off on purpose, by an injected fault")
        return original(self, body)

    def mend() -> None:
        OtlpClient.post = original  # type: ignore[method-assign]

    OtlpClient.post = post  # type: ignore[method-assign]
    return mend


def rankwatch_injected_gpu_error() -> None:
    """Index past the end of a tensor on the device: its assertion ends the CUDA context, and the next wait raises.

    Raises:
        FaultUnavailableError: there is no CUDA device.
        RuntimeError: torch's, about the device-side assertion.
    """
    torch = _torch_with_cuda(Kind.GPU_ERROR)
    torch.zeros(1, device="cuda")[torch.tensor([1 << 20], device="cuda")]
    torch.cuda.synchronize()


def rankwatch_injected_gpu_sleep(seconds: float) -> None:
    """Run a kernel that spins, and wait for it. The length is as exact as the clock that the device runs at.

    Raises:
        FaultUnavailableError: there is no CUDA device.
    """
    torch = _torch_with_cuda(Kind.GPU_SLEEP)
    kilohertz = torch.cuda.get_device_properties(torch.cuda.current_device()).clock_rate
    torch.cuda._sleep(int(seconds * kilohertz * 1000))
    torch.cuda.synchronize()


def _torch_with_cuda(kind: Kind) -> Any:
    torch = sys.modules.get("torch")  # a script that uses a GPU has imported it
    if torch is None:
        raise FaultUnavailableError(f"fault {kind} needs torch, which this script has not imported")
    if not torch.cuda.is_available():
        raise FaultUnavailableError(f"fault {kind} needs a CUDA device, and torch finds none here")
    return torch
