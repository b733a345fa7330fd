"""What each kind of fault does to this process. The function names are recognisable in a captured stack."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rankwatch.faults.spec import FOREVER, Fault, Kind

if TYPE_CHECKING:
    import ctypes


class InjectedFaultError(RuntimeError):
    """The exception that faults of the kinds ``exception`` and ``async_exception`` raise."""


class InjectedAsyncError(InjectedFaultError):
    """Raised in the main thread by another one. CPython takes a class there and makes the instance itself."""

    def __init__(self) -> None:
        super().__init__("injected into the main thread by another one")


class FaultUnavailableError(RuntimeError):
    """This fault cannot be injected into this process; the message states what is missing."""


MAIN_THREAD_ONLY: Final = frozenset(
    {Kind.HANG, Kind.EXCEPTION, Kind.EXIT, Kind.UNINTERRUPTIBLE, Kind.GPU_ERROR, Kind.GPU_SLEEP}
)
"""Kinds that affect the thread which runs them. All others affect the whole process, from any thread."""

_SIGNALS: Final[Mapping[Kind, signal.Signals]] = {
    Kind.STOP: signal.SIGSTOP,
    Kind.KILL: signal.SIGKILL,
    Kind.INT: signal.SIGINT,
    Kind.TERM: signal.SIGTERM,
}


def carry_out(fault: Fault) -> None:
    """Inject the fault into this process. A random kind must have been drawn before.

    Raises:
        InjectedFaultError: kind ``exception``; kind ``async_exception`` raises it a moment later in the main thread.
        SystemExit: kind ``exit``.
        FaultUnavailableError: this kind needs something that is missing here.
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
    """Wait for a lock that nothing releases, as in a deadlock, or for so long; signals do not end it."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=-1 if seconds >= FOREVER else seconds)


def rankwatch_injected_held_gil(seconds: float) -> None:
    """Sleep in C with the GIL held, like an extension stuck in a driver."""
    import ctypes

    libc = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL during the call
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:  # a signal ends the call early
        if left >= 1:
            libc.sleep(int(left))
        else:
            libc.usleep(int(left * 1e6) + 1)


def rankwatch_injected_segfault() -> None:
    """Read an unmapped address."""
    import ctypes

    ctypes.string_at(0)


def rankwatch_injected_async_exception() -> None:
    """Raise an exception in the main thread from another one, between two of its bytecodes."""
    import ctypes

    main = threading.main_thread().ident
    put = ctypes.pythonapi.PyThreadState_SetAsyncExc
    begun = threading.Event()  # within Thread.start() the exception would be replaced by one of its cleanup

    def raise_in_main() -> None:
        begun.wait()
        put(ctypes.c_ulong(main or 0), ctypes.py_object(InjectedAsyncError))

    threading.Thread(target=raise_in_main, name="rankwatch-fault", daemon=True).start()
    begun.set()


_last_end: float | None = None


def rankwatch_injected_slowness(fault: Fault) -> None:
    """Sleep for the given seconds, or until the time since the last call is ``factor`` times what it was."""
    global _last_end
    now = time.monotonic()
    own = now - _last_end if _last_end is not None else 0.0
    time.sleep(fault.seconds if fault.seconds is not None else max(0.0, own * ((fault.factor or 1.0) - 1.0)))
    _last_end = time.monotonic()


def cut_telemetry(seconds: float) -> Callable[[], None]:
    """Let every export of this process fail for ``seconds``, as in a network outage; return a function that ends it.

    Reports are queued as in a real outage and delivered afterwards.
    """
    from rankwatch.export.transport import OtlpClient, SendResult, SendStatus

    original = OtlpClient.post
    until = time.monotonic() + seconds

    def post(self: OtlpClient, body: bytes) -> SendResult:
        if time.monotonic() < until:
            return SendResult(SendStatus.RETRY_LATER, "cut off by an injected fault")
        return original(self, body)

    def restore() -> None:
        OtlpClient.post = original  # type: ignore[method-assign]

    OtlpClient.post = post  # type: ignore[method-assign]
    return restore


# State D --------------------------------------------------------------------------------------------------------------

_ACTIONS_BYTES: Final = 512
"""More than any libc's posix_spawn_file_actions_t takes (80 bytes in glibc)."""
_PROGRAM: Final = b"/bin/true"
# Runs in a shell until its standard input is closed: at the end of the wait, or by the kernel when this process has
# died. Then it lets the child continue, which would otherwise outlive the rank, and cleans up; "<>" never blocks.
_RELEASE: Final = 'read -r _; : <> "$1/pipe"; rm -rf "$1"'


def rankwatch_injected_uninterruptible(seconds: float) -> None:
    """Wait in the kernel in state D on this thread; others continue, since the GIL is not held.

    The kernel suspends a process in state D while its ``vfork`` child has neither run a program nor ended. glibc's
    ``posix_spawn`` is such a vfork, and the child may open a file before it runs its program: here a named pipe without
    a writer. This needs no root and does the machine no harm; SIGKILL ends it, as it does most real waits in state D.

    Raises:
        OSError: no process can be started.
    """
    import ctypes
    import subprocess
    import tempfile

    libc = ctypes.CDLL(None)
    folder = Path(tempfile.mkdtemp(prefix="rankwatch-fault-"))
    os.mkfifo(folder / "pipe")
    # In its own session: it has to run on after the process group of this rank was killed.
    releaser = subprocess.Popen(
        ["/bin/sh", "-c", _RELEASE, "sh", str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )
    with releaser:
        assert releaser.stdin is not None
        timer = threading.Timer(seconds, releaser.stdin.close)
        timer.daemon = True
        timer.start()
        _spawn_blocked_on(libc, folder / "pipe", closing=releaser.stdin.fileno())


def _spawn_blocked_on(libc: ctypes.CDLL, pipe: Path, *, closing: int) -> None:
    """Start a program whose process first waits for a writer of the pipe; its copy of ``closing`` is closed."""
    import ctypes

    actions = ctypes.create_string_buffer(_ACTIONS_BYTES)
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addclose(actions, closing)
    libc.posix_spawn_file_actions_addopen(actions, 0, os.fsencode(pipe), os.O_RDONLY, 0)
    pid = ctypes.c_int()
    arguments = (ctypes.c_char_p * 2)(_PROGRAM, None)
    nothing = (ctypes.c_char_p * 1)(None)
    try:
        error = libc.posix_spawn(ctypes.byref(pid), _PROGRAM, actions, None, arguments, nothing)
    finally:
        libc.posix_spawn_file_actions_destroy(actions)
    if error:
        raise OSError(error, os.strerror(error), os.fsdecode(_PROGRAM))
    os.waitpid(pid.value, 0)


# GPU ------------------------------------------------------------------------------------------------------------------


def rankwatch_injected_gpu_error() -> None:
    """Index past the end of a tensor on the device: the next synchronisation raises.

    Raises:
        FaultUnavailableError: there is no CUDA device.
        RuntimeError: torch's, about the device-side assertion.
    """
    torch = _torch_with_cuda(Kind.GPU_ERROR)
    torch.zeros(1, device="cuda")[torch.tensor([1 << 20], device="cuda")]
    torch.cuda.synchronize()


def rankwatch_injected_gpu_sleep(seconds: float) -> None:
    """Run a spinning kernel and wait for it. The duration is as exact as the device's clock rate.

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
