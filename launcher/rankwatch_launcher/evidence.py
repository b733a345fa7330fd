"""Takes the stacks of a node's ranks from outside, before anything is killed.

py-spy reads the memory of a process, so it also works on one that is stopped or holds its GIL; it needs the right to
trace. Where it may not, faulthandler in the rank writes the stacks when it gets a signal, which ``rankwatch.init()``
prepared.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from rankwatch.wire.control import RankStack
from rankwatch.wire.vocabulary import ProcessState
from rankwatch_launcher import proc, stack_formats
from rankwatch_launcher.log import logger

STACK_SIGNAL: Final = signal.SIGRTMIN + 6
"""Above the real-time signals that glibc and common profilers take."""

_PROBE_SECONDS: Final = 10.0
_PROBE_TRIES: Final = 5
_PROBE_PAUSE: Final = 0.2
_NO_RIGHT: Final = ("permission denied", "not permitted", "root")
_SETTLE_SECONDS: Final = 0.05
"""faulthandler writes without a mark at its end: a file that has not grown for so long is taken as complete."""
_PR_SET_PTRACER: Final = 0x59616D61


@dataclass(frozen=True, slots=True)
class Target:
    """One rank whose stack is wanted."""

    rank: int
    local_rank: int
    pid: int
    stack_file: Path | None = None


@dataclass
class StackReader:
    """Takes stacks by py-spy where that works, else by faulthandler; ``probe()`` finds out which.

    Until the probe is done py-spy is tried.
    """

    py_spy: str | None = None
    refusal: str = ""
    _probed: threading.Event = field(default_factory=threading.Event)

    def probe(self) -> None:
        """Find py-spy and try it on this process, as a rank would allow it; say once if it does not work."""
        try:
            self.py_spy = find_py_spy()
            if self.py_spy is None:
                self.refusal = "py-spy is not installed"
            else:
                _allow_tracing()
                self._try_it(self.py_spy)
        except (ValueError, OSError) as error:
            self.py_spy, self.refusal = None, str(error)
        self._probed.set()
        if self.refusal:
            logger.info(
                "stacks can only be taken of ranks that call rankwatch.init(): %s (py-spy needs the right to trace, "
                "for example CAP_SYS_PTRACE)",
                self.refusal,
            )

    def _try_it(self, tool: str) -> None:
        """Raise when py-spy lacks the right to trace. One failure is no proof: a process that imports torch moves."""
        for attempt in range(_PROBE_TRIES):
            try:
                _run_py_spy(tool, os.getpid(), _PROBE_SECONDS)
                return
            except ValueError as error:
                if any(words in str(error).lower() for words in _NO_RIGHT):
                    raise
                logger.debug("py-spy did not read this process at try %d: %s", attempt + 1, error)
                time.sleep(_PROBE_PAUSE)

    def capture(self, targets: Sequence[Target], deadline: float, *, last: bool) -> tuple[RankStack, ...]:
        """Take the stacks of all targets at once, within ``deadline`` seconds.

        Args:
            targets: the ranks that still live.
            deadline: seconds from now; a rank that takes longer is reported as an error.
            last: the ranks are killed next, so a stopped one may be continued to write its own stack.
        """
        if not targets:
            return ()
        until = time.monotonic() + deadline
        pool = ThreadPoolExecutor(max_workers=min(len(targets), 16), thread_name_prefix="rankwatch-stack")
        futures = [pool.submit(self._one, target, until, last) for target in targets]
        stacks = []
        for target, future in zip(targets, futures, strict=True):
            try:
                stacks.append(future.result(timeout=max(0.05, until + 0.1 - time.monotonic())))
            except TimeoutError:
                stacks.append(_failed(target, "", f"no stack within {deadline:g} s"))
        pool.shutdown(wait=False, cancel_futures=True)
        return tuple(stacks)

    def _one(self, target: Target, until: float, last: bool) -> RankStack:
        state = proc.process_state(target.pid)
        if state is ProcessState.EXITED:
            return replace(_failed(target, "", "the process is gone"), process_state=state)
        error = self.refusal
        if self.py_spy is not None or not self._probed.is_set():
            stack, error = self._by_py_spy(target, until)
            if stack is not None:
                return replace(stack, process_state=state)
        stack, why_not = _by_faulthandler(target, until, continue_it=last and state is ProcessState.STOPPED)
        if stack is not None:
            return replace(stack, process_state=state)
        return replace(_failed(target, "", f"{error}; {why_not}"), process_state=state)

    def _by_py_spy(self, target: Target, until: float) -> tuple[RankStack | None, str]:
        tool = self.py_spy or find_py_spy()
        if tool is None:
            return None, "py-spy is not installed"
        error = ""
        while (left := until - time.monotonic()) > 0:
            try:
                stacks = stack_formats.from_py_spy(_run_py_spy(tool, target.pid, left), target.pid)
            except (ValueError, OSError) as failure:
                # It reads without stopping the process, so a frame may change under it: a second look mostly succeeds.
                if error:
                    return None, str(failure)
                error = str(failure)
                continue
            return RankStack(target.rank, target.pid, "py-spy", stacks.main, stacks.others), ""
        return None, error or "py-spy took too long"


def find_py_spy() -> str | None:
    """The py-spy beside this interpreter, else the one on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _run_py_spy(tool: str, pid: int, timeout: float) -> str:
    command = [tool, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError("py-spy took too long") from None
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()
        raise ValueError(f"py-spy: {words[0][:200] if words else f'exit code {done.returncode}'}")
    return done.stdout


def _by_faulthandler(target: Target, until: float, *, continue_it: bool) -> tuple[RankStack | None, str]:
    path = target.stack_file
    if path is None or not proc.catches(target.pid, STACK_SIGNAL):
        return None, "the rank did not call rankwatch.init(), which lets faulthandler write its stack"
    before = _size(path)
    try:
        os.kill(target.pid, STACK_SIGNAL)
        if continue_it:
            os.kill(target.pid, signal.SIGCONT)
    except ProcessLookupError:
        return None, "the process is gone"
    size, grown_at = before, time.monotonic()
    while time.monotonic() < until:
        if (now := _size(path)) != size:
            size, grown_at = now, time.monotonic()
        elif size > before and time.monotonic() - grown_at > _SETTLE_SECONDS:
            break
        time.sleep(0.01)
    try:
        with path.open("rb") as file:
            file.seek(before)
            stacks = stack_formats.from_faulthandler(file.read(1_000_000).decode(errors="replace"))
    except (OSError, ValueError) as error:
        return None, f"faulthandler: {error}"
    return RankStack(target.rank, target.pid, "faulthandler", stacks.main, stacks.others), ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _failed(target: Target, method: str, error: str) -> RankStack:
    return RankStack(target.rank, target.pid, method, error=error.strip("; "))


def _allow_tracing() -> None:
    """Let our own children trace us, as ``rankwatch.init()`` lets a rank be traced: the probe tells what holds."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, os.getpid(), 0, 0, 0)
