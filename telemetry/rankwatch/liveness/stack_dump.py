"""The main thread's stack for the launcher: by faulthandler from inside, and permission for py-spy from outside."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from pathlib import Path
from typing import IO, Final

_PR_SET_PTRACER: Final = 0x59616D61
_PR_SET_PTRACER_ANY: Final = -1


def write_stack_on(signal_number: int, path: Path) -> IO[bytes]:
    """Make ``signal_number``, sent to the main thread, write its Python stack to the end of ``path``.

    It does so even while the GIL is held. The stacks of other threads are not written: faulthandler reads them while
    they run, and crashes now and then (51 times in 12,000 signals to a process with two busy threads). The first line
    of the file has the identifier of the main thread. The file stays open, since the signal may come at any time; keep
    the returned object.

    Raises:
        OSError: the file cannot be made.
        RuntimeError, ValueError: faulthandler cannot register that signal.
    """
    path.unlink(missing_ok=True)
    file = path.open("ab", buffering=0)
    file.write(b"Main thread 0x%x\n" % (threading.main_thread().ident or 0))
    _ignore_by_default(signal_number)
    try:
        faulthandler.register(signal_number, file=file, all_threads=False, chain=False)
    except BaseException:
        file.close()
        raise
    return file


def _ignore_by_default(number: int) -> None:
    """Make the kernel discard a signal that would kill: faulthandler restores this when the interpreter ends."""
    import ctypes

    set_handler = ctypes.CDLL(None).signal  # Python's works in the main thread only
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    before = set_handler(number, int(signal.SIG_IGN))
    if before:  # not SIG_DFL
        set_handler(number, before)


def allow_tracing() -> bool:
    """Allow processes of the same user to trace this one; False where no permission is needed.

    Where Yama restricts ptrace to ancestors, the launcher may read its ranks, but py-spy, which it starts, may not:
    it is their sibling. Allowing the parent alone is not enough: numactl or a shell may be between launcher and rank.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = (ctypes.c_int, *(4 * [ctypes.c_ulong]))
    return bool(prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY & (2**64 - 1), 0, 0, 0) == 0)
