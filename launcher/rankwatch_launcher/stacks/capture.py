"""Captures the stacks of a node's ranks from outside, before anything is killed.

All ranks are captured at once, each by the first method that works:

1.  py-spy reads the memory of a process, so it also works on one that is stopped or holds its GIL; it needs
    permission to trace.
2.  faulthandler in the rank writes the stacks on a signal, if the rank has called ``rankwatch.init()``.

torch's worker control plane reports the progress of each process group (``collectives``). It could return stacks, too,
but it takes the GIL for them, which aborts a process whose interpreter is finalising. For the same reason no rank is
asked or signalled that is about to end (``Target.entering``); py-spy enters nothing.

Nothing here may delay the end of an attempt: every method has a deadline, and one that misses it is abandoned on a
daemon thread (a reader of a process that is stuck in the kernel can get stuck there itself).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from rankwatch.contract.enums import ProcessState
from rankwatch.contract.files import find_program
from rankwatch.contract.messages import Collective, RankStack
from rankwatch.contract.text import decoded
from rankwatch_launcher import procfs
from rankwatch_launcher.log import logger
from rankwatch_launcher.stacks import collectives, formats
from rankwatch_launcher.stacks.waits import PythonThread

T = TypeVar("T")

STACK_SIGNAL: Final = signal.SIGRTMIN + 6
"""Above the real-time signals used by glibc and common profilers."""

MAX_SECONDS: Final = 10.0
"""Limit on any capture, whatever deadline is given: hung ranks hold their devices meanwhile."""
COLLECTIVES_SECONDS: Final = 1.0
"""Limit on the flight recorder's answer, which takes milliseconds, so that time remains for a stack."""

_MAX_THREADS: Final = 16
_PROBE_SECONDS: Final = 10.0
_MAX_DUMP: Final = 4 * 2**20
"""Limit on the output of py-spy or faulthandler, in bytes."""
PY_SPY_MEMORY: Final = 128 * 2**20
"""Bytes that one py-spy may allocate, which needs a tenth of it for a rank: a process with deep stacks of long names in
many threads has it build hundreds of times as much."""
_KILLED_SECONDS: Final = 0.5
_PROBE_TRIES: Final = 5
_PROBE_PAUSE: Final = 0.2
NO_PERMISSION: Final = ("permission denied", "not permitted", "root")
_SETTLE_SECONDS: Final = 0.05
"""faulthandler writes no end marker: a file that has not grown for this long is complete."""
_PR_SET_PTRACER: Final = 0x59616D61


@dataclass(frozen=True, slots=True)
class Target:
    """One rank to capture."""

    rank: int
    local_rank: int
    pid: int
    stack_file: Path | None = None
    entering: Callable[[], AbstractContextManager[bool]] = lambda: contextlib.nullcontext(True)
    """Whether the process may be asked or signalled within the context; see :meth:`.NodeSlots.entering`."""

    @property
    def control_plane(self) -> Path | None:
        """The socket of torch's control plane, if it exists; it lies beside the stack file."""
        path = self.stack_file.with_suffix(".sock") if self.stack_file is not None else None
        return path if path is not None and path.exists() else None


@dataclass
class StackReader:
    """Captures stacks by py-spy if that works, else by faulthandler; ``probe()`` finds out.

    Until the probe is done, py-spy is tried.
    """

    py_spy: str | None = None
    refusal: str = ""
    _probed: threading.Event = field(default_factory=threading.Event)

    def probe(self) -> None:
        """Find py-spy and try it on this process, with a rank's permissions; log it if that fails."""
        try:
            self.py_spy = find_program("py-spy")
            if self.py_spy is None:
                self.refusal = "py-spy is not installed"
            else:
                _allow_tracing()
                self._try_py_spy(self.py_spy)
        except (ValueError, OSError) as error:
            self.py_spy, self.refusal = None, str(error)
        self._probed.set()
        if self.refusal:
            logger.info(
                "stacks can only be captured of ranks that call rankwatch.init(): %s (py-spy needs permission to "
                "trace, for example CAP_SYS_PTRACE)",
                self.refusal,
            )

    def _try_py_spy(self, tool: str) -> None:
        """Raise when py-spy lacks permission to trace. One failure proves nothing: this process may be importing."""
        for attempt in range(_PROBE_TRIES):
            try:
                run_py_spy(tool, os.getpid(), _PROBE_SECONDS)
                return
            except ValueError as error:
                if any(phrase in str(error).lower() for phrase in NO_PERMISSION):
                    raise
                logger.debug("py-spy did not read this process at try %d: %s", attempt + 1, error)
                time.sleep(_PROBE_PAUSE)

    def capture(
        self, targets: Sequence[Target], deadline: float, *, last: bool, dumps: dict[int, bytes] | None = None
    ) -> tuple[RankStack, ...]:
        """Capture the stacks of all targets at once.

        Args:
            deadline: seconds from now, at most :data:`MAX_SECONDS`; a rank that takes longer is reported as an error.
            last: the ranks are killed next, so a stopped one may be continued to write its own stack.
            dumps: takes what the flight recorder of each rank holds, as JSON.
        """
        deadline = min(deadline, MAX_SECONDS)
        until = time.monotonic() + deadline
        taken = run_all(until + 0.1, [(t.rank, partial(self._one, t, until, last, dumps)) for t in targets])
        late = f"no stack within {deadline:g} s"
        return formats.bounded([taken.get(t.rank) or _failed(t, late) for t in targets])

    def sample(
        self, targets: Sequence[Target], deadline: float, known: Mapping[int, tuple[Collective, ...]]
    ) -> tuple[dict[int, Mapping[int, PythonThread]], tuple[RankStack, ...]]:
        """Read the stacks of all targets without a signal to them: one of several looks.

        Args:
            deadline: seconds from now.
            known: positions in collectives of ranks, by rank, which are not queried again.

        Returns:
            The Python threads of each rank that could be read, by their id in the kernel, and the ranks' stacks.
        """
        until = time.monotonic() + min(deadline, MAX_SECONDS)
        threads: dict[int, Mapping[int, PythonThread]] = {}

        def one(target: Target) -> RankStack:
            state = procfs.process_state(target.pid)
            stack, error = None, self.refusal
            if state is not ProcessState.EXITED and (self.py_spy is not None or not self._probed.is_set()):
                stack, error, threads[target.rank] = self._by_py_spy(target, until)
            positions = known.get(target.rank)
            if positions is None:
                blocked = state in (ProcessState.STOPPED, ProcessState.EXITED)
                positions = () if blocked else _collectives(target, until)
            return replace(stack or _failed(target, error), process_state=state, collectives=positions)

        taken = run_all(until + 0.1, [(t.rank, partial(one, t)) for t in targets])
        return threads, tuple(taken.get(t.rank) or _failed(t, "no stack in time") for t in targets)

    def _one(self, target: Target, until: float, last: bool, dumps: dict[int, bytes] | None) -> RankStack:
        state = procfs.process_state(target.pid)
        if state is ProcessState.EXITED:
            return replace(_failed(target, "the process is gone"), process_state=state)
        positions = () if state is ProcessState.STOPPED else _collectives(target, until, dumps)
        return replace(self._stack(target, state, until, last), process_state=state, collectives=positions)

    def _stack(self, target: Target, state: ProcessState, until: float, last: bool) -> RankStack:
        errors = [self.refusal]
        if self.py_spy is not None or not self._probed.is_set():
            stack, errors[0], _ = self._by_py_spy(target, until)
            if stack is not None:
                return stack
        stack, why_not = _by_faulthandler(target, until, state, continue_it=last)
        errors.append(why_not)
        return stack or _failed(target, "; ".join(filter(None, errors)))

    def _by_py_spy(self, target: Target, until: float) -> tuple[RankStack | None, str, Mapping[int, PythonThread]]:
        tool = self.py_spy or find_program("py-spy")
        if tool is None:
            return None, "py-spy is not installed", {}
        error = ""
        while (left := until - time.monotonic()) > 0:
            try:
                text = run_py_spy(tool, target.pid, left)
                (frames, threads), thread = formats.from_py_spy(text, target.pid), formats.main_thread(text, target.pid)
            except (ValueError, OSError) as failure:
                # It reads without stopping the process, so a frame may change meanwhile: a second try usually succeeds.
                if error:
                    return None, str(failure), {}
                error = str(failure)
                continue
            return RankStack(target.rank, target.pid, "py-spy", frames, thread=thread), "", threads
        return None, error or "py-spy took too long", {}


def run_all(until: float, tasks: Sequence[tuple[int, Callable[[], T]]]) -> dict[int, T]:
    """Results of the tasks that return by ``until``, by number; the others are abandoned on daemon threads."""
    waiting = queue.SimpleQueue[tuple[int, Callable[[], T]]]()
    for task in tasks:
        waiting.put(task)
    done = queue.SimpleQueue[tuple[int, T | None]]()

    def work() -> None:
        while time.monotonic() < until:
            try:
                number, task = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((number, task()))
            except Exception:  # noqa: BLE001 - thread boundary
                logger.exception("capturing the stack of rank %d failed", number)
                done.put((number, None))

    for _ in range(min(len(tasks), _MAX_THREADS)):
        threading.Thread(target=work, name="rankwatch-stack", daemon=True).start()
    taken: dict[int, T] = {}
    for _ in tasks:
        try:
            number, stack = done.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        if stack is not None:
            taken[number] = stack
    return taken


def _collectives(target: Target, until: float, dumps: dict[int, bytes] | None = None) -> tuple[Collective, ...]:
    path = target.control_plane
    if path is None:
        return ()
    try:
        with target.entering() as allowed:
            if not allowed:
                return ()
            dump = collectives.dump(path, min(until, time.monotonic() + COLLECTIVES_SECONDS))
        if dumps is not None:
            dumps[target.rank] = dump
        return collectives.from_flight_recorder(decoded(dump))
    except (OSError, ValueError) as error:
        logger.debug("the collectives of rank %d are unknown: %s", target.rank, error)
        return ()


def limit_py_spy(pid: int, output: int, memory: int = PY_SPY_MEMORY) -> None:
    """Bound the memory of a py-spy that was just started, and the bytes of its output: what it reads may be hostile."""
    limits = ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_FSIZE, output), (resource.RLIMIT_CORE, 0))
    with contextlib.suppress(OSError, ValueError):  # it has ended, or has lower limits of its own
        for kind, most in limits:
            resource.prlimit(pid, kind, (most, most))


def run_py_spy(
    tool: str, pid: int, timeout: float, *options: str, output: int = _MAX_DUMP, memory: int = PY_SPY_MEMORY
) -> str:
    """What ``py-spy dump --json`` prints about a process.

    Raises:
        ValueError: it fails, or takes too long.
        OSError: it cannot be started.
    """
    command = [tool, "dump", *(options or ("--nonblocking",)), "--json", "--pid", str(pid)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # Into files and with a time limit: SIGKILL does not end a process that is stuck in the kernel.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        limit_py_spy(process.pid, output, memory)
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
            lines = err.read(1000).decode(errors="replace").strip().splitlines()
            raise ValueError(f"py-spy: {lines[0][:200] if lines else f'exit code {code}'}")
        return out.read(output).decode(errors="replace")


def _by_faulthandler(
    target: Target, until: float, state: ProcessState, *, continue_it: bool
) -> tuple[RankStack | None, str]:
    path, stopped = target.stack_file, state is ProcessState.STOPPED
    if stopped and not continue_it:
        return None, "the process is stopped, and is only continued to write its stack if it is killed next"
    with target.entering() as allowed:
        if path is None or not procfs.catches(target.pid, STACK_SIGNAL):
            return None, "the rank did not call rankwatch.init(), which lets faulthandler write its stack"
        if not allowed:
            return None, "the process is about to end"
        before = _size(path)
        try:
            _signal_main_thread(target.pid)
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
            first = file.readline(_MAX_DUMP).decode(errors="replace")
            file.seek(before)
            text = file.read(_MAX_DUMP).decode(errors="replace")
        frames, thread = formats.from_faulthandler(text), formats.main_thread(first, target.pid)
    except (OSError, ValueError) as error:
        return None, f"faulthandler: {error}"
    return RankStack(target.rank, target.pid, "faulthandler", frames, thread=thread), ""


def _signal_main_thread(pid: int) -> None:
    """Ask for its stack; it is the thread whose number is the process's.

    A C library without ``tgkill`` leaves the choice of the thread to the kernel, which prefers the main one.

    Raises:
        ProcessLookupError: the process is gone.
    """
    try:
        tgkill = ctypes.CDLL(None, use_errno=True).tgkill
    except AttributeError:
        os.kill(pid, STACK_SIGNAL)
        return
    if tgkill(pid, pid, int(STACK_SIGNAL)):
        raise ProcessLookupError(ctypes.get_errno(), "the process cannot be signalled")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _failed(target: Target, error: str) -> RankStack:
    return RankStack(target.rank, target.pid, "", error=error)


def _allow_tracing() -> None:
    """Allow tracing by child processes, as ``rankwatch.init()`` does in a rank, so that the probe is representative."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, os.getpid(), 0, 0, 0)
