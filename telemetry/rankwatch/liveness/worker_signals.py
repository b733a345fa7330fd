"""Shelters a rank's worker processes from the scheduler's stop signal; only their own parent can end them by it.

A scheduler signals every process of a job. A data loader worker that dies of it ends the training before it is saved,
so a worker must survive the signal. But ``Process.terminate()`` sends the same signal, and at interpreter exit
multiprocessing waits for ever for terminated children. So the effect depends on the sender, which a Python handler does
not receive, and torch's workers replace handlers anyway.

=======================  ==========================================================================================
fork by multiprocessing  the child blocks the signal at once; its bootstrap then starts a thread that waits for it
signal from the parent   delivered: it has its normal effect in the child, death or a handler
signal from others       ignored, and delivered when the parent has exited or is exiting: two pending signals are
                         merged into one, and that of the parent must not be lost
any other fork           the signal has its effect from before init(), also if the child calls exec
program started by it    starts with the signal unblocked: a mask survives exec, and terminate() would be blocked
spawn, forkserver        not sheltered: pass :func:`protect` to the data loader as ``worker_init_fn``
=======================  ==========================================================================================

The cost is a thread that sleeps in the kernel. Limits: it cannot act while C code holds the GIL, and does not unblock
the signal for programs started by ``os.system`` or ``os.posix_spawn``.
"""

from __future__ import annotations

import atexit
import mmap
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, Final

CHECK_INTERVAL: Final = 0.5
"""Between two checks for the parent, after a signal from another sender."""

_number: int | None = None
"""The signal from which children forked from now on are sheltered."""
_sheltered: int | None = None
"""The signal from which this process is sheltered."""
_hooked = False
_exiting: mmap.mmap | None = None
"""One byte shared by a rank and its workers: 1 once it exits, when multiprocessing terminates them and waits."""


class _Anchor:
    """multiprocessing keeps after-fork hooks as long as an object lives: this one."""


_anchor = _Anchor()


def shelter_children(number: int) -> None:
    """Shelter from signal ``number`` what multiprocessing forks from now on."""
    global _number, _hooked, _exiting
    _number = number
    if not _hooked:
        _hooked = True
        # subprocess is used in the workers. Imported here, it is not imported there: its lock may be held in a child.
        import subprocess  # noqa: F401
        from multiprocessing import util

        _exiting = mmap.mmap(-1, 1)
        atexit.register(_exit, os.getpid())  # after the import: so it is called before multiprocessing's own
        os.register_at_fork(after_in_child=_after_fork)
        util.register_after_fork(_anchor, _in_worker)


def shelters() -> bool:
    """Whether children forked from now on are sheltered."""
    return _number is not None


def shelter_no_more() -> None:
    """Do not shelter children forked from now on."""
    global _number
    _number = None


def protect(_: int = 0) -> None:
    """Shelter this worker, if ``RANKWATCH_RANK_STOP_SIGNAL`` is set: a ``worker_init_fn`` for data loaders that spawn.

    Forked workers do not need it. Those of a fork server are lost all the same: the signal ends the server. Call it in
    the worker's main thread; the worker's number is ignored.
    """
    from rankwatch import settings

    number = settings.load()[0].stop_signal
    if number is not None and _sheltered is None:
        _shelter(number)


def _exit(rank: int) -> None:
    if _exiting is not None and os.getpid() == rank:
        _exiting[0] = 1


def _after_fork() -> None:
    global _sheltered
    inherited, _sheltered = _sheltered, None
    if _number is not None and _forked_by_multiprocessing():
        # Before the handler is put back, and until the bootstrap has come to _in_worker.
        signal.pthread_sigmask(signal.SIG_BLOCK, {_number})
    elif inherited is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {inherited})


def _forked_by_multiprocessing() -> bool:
    """Whether the caller of ``os.fork``, two frames up, will run the bootstrap of a ``Process``."""
    name = sys._getframe(2).f_globals.get("__name__")
    return name == "multiprocessing.popen_fork"


def _in_worker(_: _Anchor) -> None:
    if _number is not None:
        _shelter(_number)


def _shelter(number: int) -> None:
    global _sheltered
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    if signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
        signal.signal(signal.SIGURG, _wake)
    _start_programs_unblocked(number)
    waiter = threading.Thread(target=_wait, args=(number, os.getppid()), name="rankwatch-signals", daemon=True)
    try:
        waiter.start()
    except RuntimeError:  # no thread can be started, so the parent's signal would never be delivered
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        return
    _sheltered = number


def _wait(number: int, parent: int) -> None:
    put_off = False
    while True:
        info = signal.sigtimedwait({number}, CHECK_INTERVAL) if put_off else signal.sigwaitinfo({number})
        over = put_off and _exiting is not None and _exiting[0] == 1
        if over or os.getppid() != parent or (info is not None and info.si_pid == parent):
            put_off = False
            _deliver(number)
        elif info is not None:
            put_off = True


def _deliver(number: int) -> None:
    """Deliver the signal with its normal effect in this process."""
    own = callable(signal.getsignal(number))
    if not own and number == signal.SIGTERM and _is_data_loaders_worker():
        # What torch's handler does when the sender is the parent. It cannot see the sender here, and the parent, if it
        # still watches its workers, would treat any other exit as a crash.
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.raise_signal(number)
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    if own:
        # Python calls it in the main thread, which did not notice: the signal woke this one.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGURG)


def _is_data_loaders_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _wake(_: int, __: FrameType | None) -> None:
    """SIGURG is ignored by default; with a handler it interrupts what the main thread waits for."""


def _start_programs_unblocked(number: int) -> None:
    """Unblock the signal around the start of a program: the mask survives exec, and most programs never change it.

    The window is some microseconds: fork_exec itself blocks all signals while it starts a program.
    """
    import _posixsubprocess
    import subprocess

    start: Any = _posixsubprocess.fork_exec
    if getattr(start, "unblocks", None) == number:
        return  # inherited from a parent that is a worker itself

    def unblocked(*arguments: Any) -> Any:
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        try:
            return start(*arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    unblocked.unblocks = number  # type: ignore[attr-defined]
    for module, name in ((_posixsubprocess, "fork_exec"), (subprocess, "_fork_exec")):
        if getattr(module, name, None) is start:
            setattr(module, name, unblocked)
