"""Keeps one parked interpreter per local rank, modules already imported, for the next attempt's ranks to be made of.

How this works
--------------
A rank that starts tells the pool how it was started (:meth:`Standby.take`); that is what its successor is parked with.
Once the attempt has settled, :meth:`Standby.tick` takes one small step at a time, so that training keeps its cores:

==========  =======================================  ==================================================================
step        when                                     what then
==========  =======================================  ==================================================================
probe       once per launcher                        this Python parks when it is told to; else the pool is off
park        a local rank has none, memory is there   an interpreter starts and waits
import      one waits that lacks a module            it imports that module; one import at a time on the node
take        a rank is to be started                  it becomes the rank, if nothing imported could tell the difference
==========  =======================================  ==================================================================

The pool never fails an attempt: whatever is in the way is said once, and the rank starts as a fresh process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rankwatch.recording.shared_slots import Reading
from rankwatch_launcher.log import logger
from rankwatch_launcher.node import memory
from rankwatch_launcher.prewarm import child, handle
from rankwatch_launcher.prewarm.handle import Command, ParkedInterpreter

TORCH: Final = ("torch",)
OURS: Final = ("rankwatch.export.pipeline", "rankwatch.export.resource", "rankwatch.session")
"""What ``rankwatch.init()`` imports; only where the script calls it."""
MEMORY: Final = 2 * memory.GIB
MARGIN: Final = 2 * memory.GIB
"""Memory that must be left once one more interpreter has reached its limit."""
SETTLE_SECONDS: Final = 10.0
"""When an attempt counts as started although not all of its ranks have said that they completed a step."""
IMPORT_SECONDS: Final = 600.0
"""Longer than any import from a slow shared file system; then it hangs."""
PROBE_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0
"""How often memory is looked at."""

READ_LATE: Final = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    }
)
"""Variables that change from attempt to attempt; torch reads them when the script runs, not when it is imported."""
READ_LATE_PREFIXES: Final = ("TORCHELASTIC_", "RANKWATCH_")
WITHHELD: Final = frozenset({"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"})
"""What a module would need to join the job while it is imported: nobody may take a parked interpreter for a rank."""
WITHHELD_PREFIXES: Final = ("RANKWATCH_",)


@dataclass(frozen=True, slots=True)
class StandbySettings:
    """What a person chose on the command line."""

    modules: tuple[str, ...] = ()
    """Imported ahead, beside torch."""
    memory: int = MEMORY
    """Bytes that one parked interpreter may have."""


@dataclass
class Wish:
    """How a local rank was started last, which is how its successor will be."""

    argv: tuple[str, ...]
    environment: dict[str, str]


@dataclass
class Standby:
    """The pool of one launcher. All of it runs on the thread that starts the ranks."""

    settings: StandbySettings
    readings: Callable[[], Mapping[int, Reading]]
    """What the ranks' slots say, by local rank."""
    base: tuple[str, ...] = TORCH
    """What is imported first, and known to read no variable of an attempt while it is imported."""
    settle_seconds: float = SETTLE_SECONDS
    clock: Callable[[], float] = time.monotonic
    available: Callable[[], int | None] = memory.available
    off: str = ""
    """Why there is no standby any more; empty while there is."""
    _wishes: dict[int, Wish] = field(default_factory=dict)
    _parked: dict[int, ParkedInterpreter] = field(default_factory=dict)
    _probe: subprocess.Popen[bytes] | None = None
    _trusted: bool = False
    _started_at: float = 0.0
    _asked_at: float = 0.0
    _looked_at: float = 0.0
    _said: set[str] = field(default_factory=set)

    def take(
        self, local_rank: int, argv: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int
    ) -> subprocess.Popen[bytes] | None:
        """Make a parked interpreter the rank that is started now; None when it must be a fresh process."""
        self._started_at = self.clock()
        self._wishes[local_rank] = Wish(tuple(argv), dict(environment))
        waiting = self._parked.get(local_rank)
        if waiting is None or waiting.busy or not waiting.imported:
            return None
        del self._parked[local_rank]
        problem = difference(waiting, argv, environment)
        if not problem:
            try:
                problem = waiting.start(environment, (stdout, stderr), os.getcwd())
            except OSError as error:
                problem = f"it did not start: {error}"
        if problem:
            waiting.kill()
            self._say(f"local rank {local_rank} starts as a fresh process, not from the standby: {problem}")
            return None
        logger.info("local rank %d starts from the standby (pid %d)", local_rank, waiting.process.pid)
        return waiting.process

    def tick(self) -> None:
        """Take the next small step, without waiting for anything; called a few times a second while ranks run."""
        if self.off or not self._wishes or not self._settled():
            return
        if not self._trusted:
            self._probe_python()
            return
        self._hear()
        self._look_at_memory()
        if not self.off and not any(waiting.busy for waiting in self._parked.values()):
            self._next_step()

    def close(self) -> None:
        """End all parked interpreters."""
        if self._probe is not None:
            self._probe.kill()
            self._probe.wait()
            self._probe = None
        while self._parked:
            self._parked.popitem()[1].kill()

    # Steps ------------------------------------------------------------------------------------------------------------

    def _settled(self) -> bool:
        if self.clock() - self._started_at >= self.settle_seconds:
            return True
        readings = self.readings()
        return len(readings) >= len(self._wishes) and all(r.first_iteration is not None for r in readings.values())

    def _probe_python(self) -> None:
        wish = next(iter(self._wishes.values()))
        command = Command.of(wish.argv, sys.executable, os.getcwd())
        if isinstance(command, str):
            self._give_up(command)
        elif self._probe is None:
            self._asked_at = self.clock()
            self._probe = handle.probe(wish.argv[0], wish.environment)
        elif (code := self._probe.poll()) is not None:
            self._probe = None
            self._trusted = code == child.EXIT_PROBED
            if not self._trusted:
                self._give_up(f"{wish.argv[0]} does not heed PYTHONPATH, or not in time (it ended with {code})")
        elif self.clock() - self._asked_at > PROBE_SECONDS:
            self._probe.kill()

    def _next_step(self) -> None:
        for local_rank, wish in sorted(self._wishes.items()):
            waiting = self._parked.get(local_rank)
            if waiting is None:
                self._park(local_rank, wish)
                return
            modules = self._modules()
            missing = next((name for name in modules if name not in waiting.imported), None)
            if missing is not None:
                self._asked_at = self.clock()
                waiting.ask_to_import(missing)
                return
        if self._parked:
            size = max(waiting.resident() for waiting in self._parked.values()) / memory.GIB
            names = ", ".join(modules)
            self._say(f"standby: {len(self._parked)} interpreters wait with {names} imported ({size:.2g} GiB each)")

    def _park(self, local_rank: int, wish: Wish) -> None:
        free = self.available()
        if free is not None and free < self.settings.memory + MARGIN:
            self._say(
                f"standby waits for memory: {free / memory.GIB:.1f} GiB are available, less than --standby-memory "
                f"({self.settings.memory / memory.GIB:g} GiB) and {MARGIN / memory.GIB:g} GiB beside it"
            )
            return
        command = Command.of(wish.argv, sys.executable, os.getcwd())
        if isinstance(command, str):
            self._give_up(command)
            return
        given = {name: value for name, value in wish.environment.items() if not _withheld(name)}
        self._asked_at = self.clock()
        try:
            self._parked[local_rank] = ParkedInterpreter(command, given)
        except OSError as error:
            self._give_up(f"an interpreter could not be started: {error}")

    def _modules(self) -> tuple[str, ...]:
        return (*self.base, *self.settings.modules, *(OURS if self.readings() else ()))

    def _hear(self) -> None:
        for local_rank, waiting in list(self._parked.items()):
            try:
                for answer in waiting.answers():
                    module = answer.get("imported", "")
                    if error := answer.get("error", ""):
                        self._give_up(f"{module} cannot be imported ahead: {error}")
                        return
                    if answer.get("printed", 0) > child.REPLAY_BYTES:
                        self._give_up(f"importing {module} prints more than {child.REPLAY_BYTES} bytes")
                        return
                    if module:
                        waiting.imported.append(module)
                        waiting.seconds += answer["seconds"]
                    if module not in self.base and module not in OURS:
                        waiting.read |= set(answer["read"])
            except OSError:
                code = waiting.process.wait()
                words = waiting.last_words()
                doing = f"while it imported {waiting.busy}" if waiting.busy else "while it waited"
                self._give_up(
                    f"the interpreter of local rank {local_rank} ended {doing} "
                    f"({f'exit code {code}' if code >= 0 else f'signal {-code}'}{f': {words}' if words else ''})"
                )
                return

    def _look_at_memory(self) -> None:
        if self.clock() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = self.clock()
        for waiting in self._parked.values():
            if (size := waiting.resident()) > self.settings.memory:
                self._give_up(
                    f"an interpreter with {', '.join([*waiting.imported, waiting.busy]).strip(', ')} imported has "
                    f"{size / memory.GIB:.2g} GiB, more than --standby-memory {self.settings.memory / memory.GIB:g}"
                )
                return
            if waiting.busy and self.clock() - self._asked_at > IMPORT_SECONDS:
                self._give_up(f"{waiting.busy} has not ended within {IMPORT_SECONDS:g} s")
                return
        free = self.available()
        if self._parked and free is not None and free < MARGIN / 2:
            self._say(f"standby gives its memory back: {free / memory.GIB:.1f} GiB are available")
            self.close()

    def _give_up(self, reason: str) -> None:
        self.off = reason
        logger.warning("standby is off, ranks start as fresh processes from now on: %s", reason)
        self.close()

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            logger.info("%s", line)


def difference(waiting: ParkedInterpreter, argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """What in the rank's start differs from the parked interpreter's in a way that its imports could have seen."""
    if tuple(argv) != waiting.command.argv:
        return "the command has changed"
    given = waiting.environment
    for name in sorted({*given, *environment}):
        if given.get(name) == environment.get(name):
            continue
        if not _read_late(name):
            return f"{name} has changed since it was parked"
        if name in waiting.read:
            return f"a module that was imported ahead has read or set {name}, which is now another"
        if child.WHOLE_ENVIRONMENT in waiting.read:
            return f"a module that was imported ahead has read the whole environment, and {name} is now another"
    return ""


def _read_late(name: str) -> bool:
    return name in READ_LATE or name.startswith(READ_LATE_PREFIXES)


def _withheld(name: str) -> bool:
    return name in WITHHELD or name.startswith(WITHHELD_PREFIXES)
