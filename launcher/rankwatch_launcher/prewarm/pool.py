"""Keeps one prewarmed worker per local rank, modules already imported, for the next attempt.

:meth:`PrewarmPool.take` records how a rank is started; its successor's worker is started the same way. Once the attempt
has settled, :meth:`PrewarmPool.tick` takes one small step at a time, so that training keeps its cores:

==========  =======================================  ==================================================================
step        when                                     effect
==========  =======================================  ==================================================================
probe       once per launcher                        checks that this Python runs the hook; else the pool is disabled
start       a local rank has no worker, memory is    an interpreter starts and waits
            available
import      a waiting worker lacks a module          it imports that module; one import at a time on the node
take        a rank is started                        the worker becomes the rank, if its imports could not have seen a
                                                     difference
==========  =======================================  ==================================================================

The pool never fails an attempt: a problem is logged once, and the rank starts as a fresh process.

Unless the user asked for it, the pool is *automatic*: it waits longer, leaves a quarter of the memory available, and
prewarms only for ranks that have imported torch themselves.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rankwatch.recording.shared_slots import Reading
from rankwatch_launcher import procfs
from rankwatch_launcher.log import logger
from rankwatch_launcher.options import PrewarmSettings
from rankwatch_launcher.prewarm import child, handle
from rankwatch_launcher.prewarm.handle import Command, PrewarmedWorker
from rankwatch_launcher.procfs import GIB, Memory

TORCH: Final = ("torch",)
OURS: Final = ("rankwatch.export.pipeline", "rankwatch.export.resource", "rankwatch.session")
"""What ``rankwatch.init()`` imports; used when the script calls it."""
MARGIN: Final = 2 * GIB
"""Memory that must remain once one more worker has reached its limit."""
AUTOMATIC_SHARE: Final = 0.25
"""Share of all memory that an automatic pool leaves available, if that is more."""
SETTLE_SECONDS: Final = 10.0
"""After this an attempt counts as settled although not all of its ranks report a completed step. An automatic pool
waits at least as long."""
AUTOMATIC_SETTLE_SECONDS: Final = 60.0
"""The same for an automatic pool."""
LIBRARY: Final = "libtorch"
"""Mapped by a process that has imported torch."""
IMPORT_SECONDS: Final = 600.0
"""Limit on one import: longer than from any slow shared file system."""
PROBE_SECONDS: Final = 60.0
MEMORY_CHECK_SECONDS: Final = 1.0
LIBRARY_CHECK_SECONDS: Final = 10.0

READ_LATE: Final = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    }
)
"""Variables that differ between attempts; torch reads them when the script runs, not when it is imported."""
READ_LATE_PREFIXES: Final = ("TORCHELASTIC_", "RANKWATCH_")
WITHHELD: Final = frozenset({"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"})
"""What a module would need to join the job: a worker must not act as a rank while it imports."""
WITHHELD_PREFIXES: Final = ("RANKWATCH_",)


@dataclass
class RankStart:
    """How a local rank was started last, and its worker is prepared for."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    pid: int | None = None
    """The rank's process, once it runs."""


@dataclass
class PrewarmPool:
    """The workers of one launcher. All methods run on the thread that starts the ranks."""

    settings: PrewarmSettings
    readings: Callable[[], Mapping[int, Reading]]
    """Reads the ranks' slots, by local rank."""
    base: tuple[str, ...] = TORCH
    """Imported first, and known to read no variable of an attempt during the import."""
    settle_seconds: float | None = None
    """None: :data:`SETTLE_SECONDS` or :data:`AUTOMATIC_SETTLE_SECONDS`."""
    clock: Callable[[], float] = time.monotonic
    memory: Callable[[], Memory | None] = procfs.memory
    disabled: str = ""
    """Why the pool is disabled; empty while it works."""
    _starts: dict[int, RankStart] = field(default_factory=dict)
    _workers: dict[int, PrewarmedWorker] = field(default_factory=dict)
    _probe: subprocess.Popen[bytes] | None = None
    _hook_works: bool = False
    _started_at: float = 0.0
    _requested_at: float = 0.0
    _memory_checked_at: float = 0.0
    _library_checked_at: float = -LIBRARY_CHECK_SECONDS
    _library_found: bool = False
    _logged: set[str] = field(default_factory=set)

    def take(
        self, local_rank: int, argv: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int
    ) -> subprocess.Popen[bytes] | None:
        """Turn a worker into the rank being started; None when it must be a fresh process."""
        self._started_at, self._library_found = self.clock(), False
        self._starts[local_rank] = RankStart(tuple(argv), dict(environment))
        worker = self._workers.get(local_rank)
        if worker is None or worker.busy or not worker.imported:
            return None
        del self._workers[local_rank]
        problem = difference(worker, argv, environment)
        if not problem:
            try:
                problem = worker.start(environment, (stdout, stderr), os.getcwd())
            except OSError as error:
                problem = f"it did not start: {error}"
        if problem:
            worker.kill()
            self._log_once(f"local rank {local_rank} starts as a fresh process, not prewarmed: {problem}")
            return None
        logger.debug("local rank %d starts from a prewarmed worker (pid %d)", local_rank, worker.process.pid)
        return worker.process

    def started(self, local_rank: int, pid: int) -> None:
        """Note the process of a rank, whichever way it was started."""
        if (start := self._starts.get(local_rank)) is not None:
            start.pid = pid

    def tick(self) -> None:
        """Take the next step without waiting; called a few times a second while ranks run."""
        if self.disabled or not self._starts or not self._settled():
            return
        if not self._hook_works:
            self._probe_python()
            return
        self._read_answers()
        self._check_memory()
        if not self.disabled and not any(worker.busy for worker in self._workers.values()):
            self._next_step()

    def close(self) -> None:
        """Kill all workers."""
        if self._probe is not None:
            self._probe.kill()
            handle.wait_killed(self._probe)
            self._probe = None
        while self._workers:
            self._workers.popitem()[1].kill()

    # Steps ------------------------------------------------------------------------------------------------------------

    def _settled(self) -> bool:
        automatic, age = self.settings.automatic, self.clock() - self._started_at
        patience = AUTOMATIC_SETTLE_SECONDS if automatic else SETTLE_SECONDS
        if age < (patience if self.settle_seconds is None else self.settle_seconds):
            if automatic and age < SETTLE_SECONDS:
                return False
            readings = self.readings()
            if len(readings) < len(self._starts) or any(r.first_iteration is None for r in readings.values()):
                return False
        return not automatic or self._ranks_have_torch()

    def _ranks_have_torch(self) -> bool:
        if not self._library_found and self.clock() - self._library_checked_at >= LIBRARY_CHECK_SECONDS:
            self._library_checked_at = self.clock()
            pids = [start.pid for start in self._starts.values()]
            self._library_found = all(pid is not None and procfs.maps_library(pid, LIBRARY) for pid in pids)
        return self._library_found

    def _margin(self, memory: Memory) -> int:
        return max(MARGIN, int(AUTOMATIC_SHARE * memory.total)) if self.settings.automatic else MARGIN

    def _probe_python(self) -> None:
        start = next(iter(self._starts.values()))
        command = Command.of(start.argv, sys.executable, os.getcwd())
        if isinstance(command, str):
            self._disable(command)
        elif self._probe is None:
            self._requested_at = self.clock()
            self._probe = handle.probe(start.argv[0], start.environment)
        elif (code := self._probe.poll()) is not None:
            self._probe = None
            self._hook_works = code == child.EXIT_PROBED
            if not self._hook_works:
                self._disable(f"{start.argv[0]} ignores PYTHONPATH, or is too slow (it exited with {code})")
        elif self.clock() - self._requested_at > PROBE_SECONDS:
            self._probe.kill()

    def _next_step(self) -> None:
        for local_rank, start in sorted(self._starts.items()):
            worker = self._workers.get(local_rank)
            if worker is None:
                self._start_worker(local_rank, start)
                return
            modules = self._modules()
            missing = next((name for name in modules if name not in worker.imported), None)
            if missing is not None:
                self._requested_at = self.clock()
                worker.request_import(missing)
                return
        if self._workers:
            size = max(worker.resident() for worker in self._workers.values()) / GIB
            names = ", ".join(modules)
            self._log_once(
                f"standby: {len(self._workers)} prewarmed workers have imported {names} ({size:.2g} GiB each)"
            )

    def _start_worker(self, local_rank: int, start: RankStart) -> None:
        memory = self.memory()
        if memory is not None and memory.available < self.settings.memory + (margin := self._margin(memory)):
            self._log_once(
                f"standby waits for memory: {memory.available / GIB:.1f} GiB available, less than --standby-memory "
                f"({self.settings.memory / GIB:g} GiB) plus a margin of {margin / GIB:.3g} GiB"
            )
            return
        command = Command.of(start.argv, sys.executable, os.getcwd())
        if isinstance(command, str):
            self._disable(command)
            return
        given = {name: value for name, value in start.environment.items() if not _withheld(name)}
        self._requested_at = self.clock()
        try:
            self._workers[local_rank] = PrewarmedWorker(command, given)
        except OSError as error:
            self._disable(f"a worker could not be started: {error}")

    def _modules(self) -> tuple[str, ...]:
        return (*self.base, *(OURS if self.readings() else ()))

    def _read_answers(self) -> None:
        for local_rank, worker in list(self._workers.items()):
            try:
                for answer in worker.answers():
                    module = answer.imported
                    if answer.error:
                        self._disable(f"{module} cannot be imported ahead: {answer.error}")
                        return
                    if answer.printed > child.REPLAY_BYTES:
                        self._disable(f"the import of {module} prints more than {child.REPLAY_BYTES} bytes")
                        return
                    if module:
                        worker.imported.append(module)
            except handle.AnswerError as error:
                self._disable(f"the worker of local rank {local_rank} {error}")
                return
            except OSError:
                code = handle.wait_killed(worker.process)
                line = worker.last_stderr_line()
                doing = f"while it imported {worker.busy}" if worker.busy else "while it waited"
                self._disable(
                    f"the worker of local rank {local_rank} exited {doing} ({_exit(code)}{f': {line}' if line else ''})"
                )
                return

    def _check_memory(self) -> None:
        if self.clock() - self._memory_checked_at < MEMORY_CHECK_SECONDS:
            return
        self._memory_checked_at = self.clock()
        for worker in self._workers.values():
            if (size := worker.resident()) > self.settings.memory:
                self._disable(
                    f"a worker with {', '.join([*worker.imported, worker.busy]).strip(', ')} imported has "
                    f"{size / GIB:.2g} GiB, more than --standby-memory {self.settings.memory / GIB:g}"
                )
                return
            if worker.busy and self.clock() - self._requested_at > IMPORT_SECONDS:
                self._disable(f"the import of {worker.busy} has not finished within {IMPORT_SECONDS:g} s")
                return
        memory = self.memory()
        if self._workers and memory is not None and memory.available < self._margin(memory) / 2:
            self._log_once(f"standby releases its memory: {memory.available / GIB:.1f} GiB available")
            self.close()

    def _disable(self, reason: str) -> None:
        self.disabled = reason
        level = logging.INFO if self.settings.automatic else logging.WARNING
        logger.log(level, "standby is disabled, ranks start as fresh processes from now on: %s", reason)
        self.close()

    def _log_once(self, line: str) -> None:
        if line not in self._logged:
            self._logged.add(line)
            logger.debug("%s", line)


def difference(worker: PrewarmedWorker, argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """A difference between the rank's start and the worker's that its imports could have seen; empty: none."""
    if tuple(argv) != worker.command.argv:
        return "the command has changed"
    given = worker.environment
    for name in sorted({*given, *environment}):
        if given.get(name) == environment.get(name):
            continue
        if name not in READ_LATE and not name.startswith(READ_LATE_PREFIXES):
            return f"{name} has changed since the worker was started"
    return ""


def _exit(code: int | None) -> str:
    if code is None:
        return "it does not end"
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _withheld(name: str) -> bool:
    return name in WITHHELD or name.startswith(WITHHELD_PREFIXES)
