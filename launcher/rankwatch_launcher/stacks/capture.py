"""Takes the stacks of a node's ranks from outside, before anything is killed.

How this works
--------------
The first way that works is taken, for each rank by itself and all ranks at once:

1.  py-spy reads the memory of a process, so it also works on one that is stopped or holds its GIL; it needs the right
    to trace.
2.  faulthandler in the rank writes the stacks when it gets a signal, which ``rankwatch.init()`` prepared.
3.  torch's worker control plane answers with them, where there is one and the GIL is free.

Beside the stack the control plane is asked how far each process group has come (``collectives``). Nothing of this may
hold up the end of an attempt: every way has a deadline, and what does not come back by then is left behind on a thread
that nobody waits for (a reader of a process that is stuck in the kernel can get stuck there itself).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from rankwatch.contract.enums import ProcessState
from rankwatch.contract.messages import Collective, RankStack
from rankwatch_launcher.log import logger
from rankwatch_launcher.node import procfs
from rankwatch_launcher.stacks import collectives, formats

STACK_SIGNAL: Final = signal.SIGRTMIN + 6
"""Above the real-time signals that glibc and common profilers take."""

LONGEST: Final = 10.0
"""Seconds that any capture may take, whatever was asked for: ranks that hang hold their devices meanwhile."""
COLLECTIVES_SECONDS: Final = 1.0
"""For the flight recorder's answer, which takes milliseconds: one that does not come leaves time for a stack."""

_AT_ONCE: Final = 16
_PROBE_SECONDS: Final = 10.0
_MAX_DUMP: Final = 4 * 2**20
"""Bytes read of what py-spy or faulthandler wrote."""
_KILLED_SECONDS: Final = 0.5
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

    @property
    def control_plane(self) -> Path | None:
        """The socket of its torch, if there is one; it lies beside the file of its stacks."""
        path = self.stack_file.with_suffix(".sock") if self.stack_file is not None else None
        return path if path is not None and path.exists() else None


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
            deadline: seconds from now, :data:`LONGEST` at most; a rank that takes longer is reported as an error.
            last: the ranks are killed next, so a stopped one may be continued to write its own stack.
        """
        deadline = min(deadline, LONGEST)
        until = time.monotonic() + deadline
        taken = _all_by(until + 0.1, [(t.rank, partial(self._one, t, until, last)) for t in targets])
        late = f"no stack within {deadline:g} s"
        return formats.bounded([taken.get(t.rank) or _failed(t, late) for t in targets])

    def _one(self, target: Target, until: float, last: bool) -> RankStack:
        state = procfs.process_state(target.pid)
        if state is ProcessState.EXITED:
            return replace(_failed(target, "the process is gone"), process_state=state)
        positions = () if state is ProcessState.STOPPED else _collectives(target, until)
        return replace(self._stack(target, state, until, last), process_state=state, collectives=positions)

    def _stack(self, target: Target, state: ProcessState, until: float, last: bool) -> RankStack:
        errors = [self.refusal]
        if self.py_spy is not None or not self._probed.is_set():
            stack, errors[0] = self._by_py_spy(target, until)
            if stack is not None:
                return stack
        third = state is not ProcessState.STOPPED and target.control_plane is not None
        # A rank whose handler does not run would use up all the time that is left.
        half = time.monotonic() + (until - time.monotonic()) / 2 if third else until
        stack, why_not = _by_faulthandler(target, half, state, continue_it=last)
        errors.append(why_not)
        if stack is None and third:
            stack, why_not = _by_control_plane(target, until)
            errors.append(why_not)
        return stack or _failed(target, "; ".join(filter(None, errors)))

    def _by_py_spy(self, target: Target, until: float) -> tuple[RankStack | None, str]:
        tool = self.py_spy or find_py_spy()
        if tool is None:
            return None, "py-spy is not installed"
        error = ""
        while (left := until - time.monotonic()) > 0:
            try:
                frames = formats.from_py_spy(_run_py_spy(tool, target.pid, left), target.pid)
            except (ValueError, OSError) as failure:
                # It reads without stopping the process, so a frame may change under it: a second look mostly succeeds.
                if error:
                    return None, str(failure)
                error = str(failure)
                continue
            return RankStack(target.rank, target.pid, "py-spy", frames), ""
        return None, error or "py-spy took too long"


def _all_by(until: float, tasks: Sequence[tuple[int, Callable[[], RankStack]]]) -> dict[int, RankStack]:
    """What tasks return by ``until``, by their number. Those that do not are left behind on daemon threads."""
    waiting = queue.SimpleQueue[tuple[int, Callable[[], RankStack]]]()
    for task in tasks:
        waiting.put(task)
    done = queue.SimpleQueue[tuple[int, RankStack | None]]()

    def work() -> None:
        while time.monotonic() < until:
            try:
                number, task = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((number, task()))
            except Exception:  # noqa: BLE001 - the thread's boundary: the others' stacks still count
                logger.exception("taking the stack of rank %d failed", number)
                done.put((number, None))

    for _ in range(min(len(tasks), _AT_ONCE)):
        threading.Thread(target=work, name="rankwatch-stack", daemon=True).start()
    taken: dict[int, RankStack] = {}
    for _ in tasks:
        try:
            number, stack = done.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        if stack is not None:
            taken[number] = stack
    return taken


def _collectives(target: Target, until: float) -> tuple[Collective, ...]:
    path = target.control_plane
    if path is None:
        return ()
    try:
        return collectives.of_rank(path, min(until, time.monotonic() + COLLECTIVES_SECONDS))
    except (OSError, ValueError) as error:
        logger.debug("rank %d does not tell how far its collectives have come: %s", target.rank, error)
        return ()


def find_py_spy() -> str | None:
    """The py-spy beside this interpreter, else the one on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _run_py_spy(tool: str, pid: int, timeout: float) -> str:
    command = [tool, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # Into files, and its end is not waited for without limit: SIGKILL does not end one that is stuck in the kernel.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_SECONDS)
            raise ValueError("py-spy took too long") from None
        out.seek(0)
        err.seek(0)
        if code != 0:
            words = err.read(1000).decode(errors="replace").strip().splitlines()
            raise ValueError(f"py-spy: {words[0][:200] if words else f'exit code {code}'}")
        return out.read(_MAX_DUMP).decode(errors="replace")


def _by_control_plane(target: Target, until: float) -> tuple[RankStack | None, str]:
    path = target.control_plane
    if path is None:
        return None, "the control plane is gone"
    try:
        frames = formats.from_faulthandler(collectives.ask(path, collectives.TRACEBACK, until).decode())
    except (OSError, ValueError) as error:
        return None, f"control plane: {error}"
    return RankStack(target.rank, target.pid, "control-plane", frames), ""


def _by_faulthandler(
    target: Target, until: float, state: ProcessState, *, continue_it: bool
) -> tuple[RankStack | None, str]:
    path, stopped = target.stack_file, state is ProcessState.STOPPED
    if path is None or not procfs.catches(target.pid, STACK_SIGNAL):
        return None, "the rank did not call rankwatch.init(), which lets faulthandler write its stack"
    if stopped and not continue_it:
        return None, "the process is stopped, and only one that is killed next is continued to write its stack"
    before = _size(path)
    try:
        os.kill(target.pid, STACK_SIGNAL)
        if stopped:
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
            frames = formats.from_faulthandler(file.read(_MAX_DUMP).decode(errors="replace"))
    except (OSError, ValueError) as error:
        return None, f"faulthandler: {error}"
    return RankStack(target.rank, target.pid, "faulthandler", frames), ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _failed(target: Target, error: str) -> RankStack:
    return RankStack(target.rank, target.pid, "", error=error)


def _allow_tracing() -> None:
    """Let our own children trace us, as ``rankwatch.init()`` lets a rank be traced: the probe tells what holds."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, os.getpid(), 0, 0, 0)
