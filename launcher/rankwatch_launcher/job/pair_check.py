"""Nodes measured in groups of two, in two rounds: the launchers' part, through the rendezvous store.

Each launcher starts the process that measures, and registers once that has torch. The launcher that holds the store
waits for the others, forms the groups, and publishes the table; every wait has an end, whoever is silent.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from rankwatch.contract.interpreter import own_python
from rankwatch.contract.text import decoded
from rankwatch_launcher.checks.pairing import Figures, Groups, Verdict, first_groups, judge, second_groups
from rankwatch_launcher.coordination.membership import Member
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.log import logger
from rankwatch_launcher.torch_compat import DistError, Store, store_host, store_port

T = TypeVar("T")

ROUND_SECONDS: Final = 10.0
"""Limit of one round: two of them and what lies between end within 30 s, at any size."""
PART: Final = 0.7
"""Part of it that an operation of a group may take."""
SLACK: Final = 3.0
"""Seconds between the limit of a round for those who measure and for the one who waits for them."""
START_SECONDS: Final = 120.0
"""What importing torch may take on a cold file system."""
LEAVE_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """The groups of one round."""

    groups: Groups
    gpus: int
    """GPUs of each node that take part; 0: it is measured on the CPU, by gloo."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A launcher's process for measuring has torch."""

    gpus: int


@dataclass(frozen=True, slots=True)
class Table:
    """The result, the same for all."""

    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class Attendance:
    """How many nodes are waited for, and how long."""

    least: int
    most: int
    last_call: float
    patience: float


class Measuring:
    """The processes of this node that measure: for each round one, or one for each GPU.

    A collective that waits for a silent partner may not end in time, whatever its limit: the next round has others.
    """

    def __init__(self, ranks: int) -> None:
        self._children: list[subprocess.Popen[bytes]] = []
        self._rounds: list[list[int]] = [[], []]
        """The numbers of the processes of each round that is to come."""
        self._answers: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        self._start()
        ready = self._wait(len(self._children), START_SECONDS)
        self.gpus = max(0, min([ranks, *(answer.get("gpus", 0) for answer in ready.values())]))
        for _ in range(self.gpus - 1):
            self._start()
        self._wait(2 * max(0, self.gpus - 1), START_SECONDS)

    def measure(self, place: Mapping[str, Any], first_rank: int, gpus: int, seconds: float) -> Figures:
        """Measure the next round: of several processes the slowest counts."""
        numbers = self._rounds.pop(0)[: max(1, gpus)]
        for local, number in enumerate(numbers):
            more = {"rank": first_rank + local, "device": local, "nccl": gpus > 0, "seconds": PART * seconds}
            pipe = self._children[number].stdin
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.write(json.dumps({**place, **more}).encode() + b"\n")
                pipe.flush()
        found = self._wait(len(numbers), seconds, place["prefix"])
        for number in numbers:
            _end(self._children[number])
        answers = [found.get(number, {}) for number in numbers]
        slowest = (_slowest(each.get(name) for each in answers) for name in ("compute", "all_reduce"))
        return Figures(*slowest)

    def close(self) -> None:
        """End them."""
        for child in self._children:
            _end(child)

    def _start(self) -> None:
        """Start one process for each round."""
        for numbers in self._rounds:
            child = subprocess.Popen(
                own_python("-m", "rankwatch_launcher.checks.pair_child"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            numbers.append(len(self._children))
            self._children.append(child)
            threading.Thread(target=self._read, args=(numbers[-1], child), daemon=True).start()

    def _read(self, number: int, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for line in child.stdout:
                self._answers.put((number, decoded(line)))

    def _wait(self, count: int, seconds: float, prefix: str = "") -> dict[int, dict[str, Any]]:
        """Answers by process, of one round, or of their start."""
        until = time.monotonic() + seconds
        found: dict[int, dict[str, Any]] = {}
        part: dict[int, dict[str, Any]] = {}  # an all-reduce that does not end leaves the matrix product
        while len(found) < count and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                number, answer = self._answers.get(timeout=left)
                if answer.get("prefix", "") == prefix:
                    (found if answer.get("whole", True) else part)[number] = answer
        return part | found


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1.0)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _slowest(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else max(each for each in known if each is not None)


class PairCheck:
    """One launcher's part in the measurement."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        me: Member,
        attendance: Attendance,
        *,
        leads: bool,
        pause: Callable[[float], None] = time.sleep,
        seconds: float = ROUND_SECONDS,
    ) -> None:
        """``leads``: it holds the store; ``pause`` waits between two looks at it, and may raise."""
        self._tcp, self._store = store, JobStore(store, f"{run_id}/pairs")
        self._gpus, self._published_at = 0, 0.0
        self._me, self._attendance, self._leads, self._pause, self._seconds = me, attendance, leads, pause, seconds

    def run(self) -> tuple[Verdict, ...]:
        """The table of all nodes; empty where this one came too late, or too few came."""
        measuring = Measuring(self._me.local_world_size)
        try:
            self._store.publish(f"ready/{self._me.node}", asdict(Ready(measuring.gpus)))
            self._store.register(self._me)
            groups: list[Groups] = []
            answers: list[dict[str, Figures]] = []
            for number in (1, 2):
                plan = self._plan(number, groups, answers)
                if plan is None:
                    return ()
                groups.append(plan.groups)
                self._take_part(number, plan, measuring)
                answers.append(self._collect(number, plan) if self._leads else {})
            if self._leads:
                verdicts = judge((groups[0], groups[1]), (answers[0], answers[1]))
                self._store.publish("table", asdict(Table(verdicts)))
            found = self._until(lambda: self._store.find("table", Table), self._seconds + 2 * SLACK)
            self._store.publish(f"done/{self._me.node}", {"gpus": 0})
            if self._leads:
                self._let_go([node for group in groups[0] for node in group])
            return found.verdicts if found is not None else ()
        except DistError as error:
            logger.warning("the nodes are not measured: the store is gone (%s)", str(error).splitlines()[0])
            return ()
        finally:
            measuring.close()

    def _plan(self, number: int, groups: list[Groups], answers: list[dict[str, Figures]]) -> Plan | None:
        name = f"groups/{number}"
        if self._leads:
            if number == 1:
                nodes = self._assemble()
                if len(nodes) < 2:
                    return None
                gpus = [(self._store.find(f"ready/{node}", Ready) or Ready(0)).gpus for node in nodes]
                self._gpus = min(gpus)
                plan = Plan(first_groups(nodes), self._gpus)
            else:
                plan = Plan(second_groups(groups[0], answers[0]), self._gpus)
            self._store.publish(name, asdict(plan))
            self._published_at = time.monotonic()
            return plan
        wait = self._attendance.patience if number == 1 else self._seconds + 2 * SLACK
        found = self._until(lambda: self._store.find(name, Plan), wait)
        return found if found is not None and any(self._me.node in group for group in found.groups) else None

    def _assemble(self) -> list[str]:
        """Wait for the nodes; with the least number of them there is a last call for more."""
        began, enough = time.monotonic(), None
        while True:
            nodes, now = self._store.member_names(), time.monotonic()
            if len(nodes) >= self._attendance.most:
                return nodes
            if len(nodes) >= self._attendance.least:
                enough = enough or now
                if now - enough > self._attendance.last_call:
                    return nodes
            if now - began > self._attendance.patience:
                logger.warning("only %d of %d nodes came to be measured", len(nodes), self._attendance.least)
                return nodes
            self._pause(POLL_SECONDS)

    def _take_part(self, number: int, plan: Plan, measuring: Measuring) -> None:
        group = next(group for group in plan.groups if self._me.node in group)
        ranks = max(1, plan.gpus)
        place = {
            "host": store_host(self._tcp),
            "port": store_port(self._tcp),
            "prefix": f"rankwatch-pairs/{number}/{group[0]}",
            "size": ranks * len(group),
        }
        figures = measuring.measure(place, ranks * group.index(self._me.node), plan.gpus, self._seconds)
        self._store.publish(f"figures/{number}/{self._me.node}", asdict(figures))

    def _collect(self, number: int, plan: Plan) -> dict[str, Figures]:
        found: dict[str, Figures] = {}
        missing = [node for group in plan.groups for node in group]
        while missing:
            for node in missing:
                if (figures := self._store.find(f"figures/{number}/{node}", Figures)) is not None:
                    found[node] = figures
            missing = [node for node in missing if node not in found]
            if time.monotonic() > self._published_at + self._seconds + SLACK:
                break
            if missing:
                self._pause(POLL_SECONDS)
        return found

    def _let_go(self, nodes: list[str]) -> None:
        """Hold the store until the others have the table."""
        until = time.monotonic() + LEAVE_SECONDS
        while time.monotonic() < until:
            if all(self._store.find(f"done/{node}", Ready) is not None for node in nodes):
                return
            self._pause(POLL_SECONDS)

    def _until(self, look: Callable[[], T | None], seconds: float) -> T | None:
        until = time.monotonic() + seconds
        while (found := look()) is None and time.monotonic() < until:
            self._pause(POLL_SECONDS)
        return found
