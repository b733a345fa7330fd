"""Emulated launchers for ``membership.py``: their own membership code on greenlets, many in one process.

Real: :class:`~rankwatch_launcher.coordination.service.MembershipService`, ``Rendezvous``, ``JobStore``, their intervals
and each launcher's connection for its heartbeats; that of its main thread as well, if ``ulimit -Hn`` allows two for
each. Emulated: there are no ranks and no store for them, so an attempt ends and begins at once. Calls of the
launchers of one process block each other, so a fleet is spread over several.
"""

from __future__ import annotations

import heapq
import itertools
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final, TypeVar

from greenlet import greenlet

from rankwatch_launcher.coordination import store as store_module
from rankwatch_launcher.coordination.decisions import RESTART, AttemptDecision, RestartBudget, StepRange
from rankwatch_launcher.coordination.membership import (
    LOOP_SECONDS,
    Loss,
    Member,
    MembershipRules,
    NodeProgress,
    Place,
    poll_seconds,
)
from rankwatch_launcher.coordination.rendezvous import Rendezvous, RendezvousParameters
from rankwatch_launcher.coordination.service import LauncherCalls, MembershipService
from rankwatch_launcher.torch_compat import PrefixStore, Store, TCPStore

T = TypeVar("T", bound=MembershipService)

RUN_ID: Final = "membership"
BUDGET: Final = RestartBudget(1000)
NODE_TIMEOUT: Final = 6.0
OPERATIONS: Final = (*("append", "add", "check", "compare_set", "delete_key", "get", "multi_get", "multi_set", "set"),)

calls: Counter[str] = Counter()
"""Calls of this process to the store."""


def _counted(name: str) -> Callable[..., Any]:
    method = getattr(PrefixStore, name)

    def call(self: Store, *arguments: Any) -> Any:
        calls[name] += 1
        return method(self, *arguments)

    return call


CountedStore: Final = type("CountedStore", (PrefixStore,), {name: _counted(name) for name in OPERATIONS})


def connect(port: int) -> Store:
    """A connection to the store."""
    return TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)


def node_name(number: int) -> str:
    """As long as the name of a node in a cluster."""
    return f"gpu-{number:05}.cluster.example_{100_000 + number}"


def raise_descriptor_limit() -> int:
    """Allow as many open files as the machine does; return how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Connected(Rendezvous):
    """A rendezvous with a connection that exists, to a store on another machine; no rank needs a store of its own."""

    def __init__(self, port: int, rules: MembershipRules, connection: Store, sleep: Callable[[float], None]) -> None:
        endpoint = f"127.0.0.1:{port}"
        parameters = RendezvousParameters("c10d", endpoint, RUN_ID, rules.min_nodes, rules.max_nodes)
        super().__init__(parameters, join_timeout=600.0)
        self._connection, self._sleep = connection, sleep

    def sleep(self, seconds: float) -> None:
        """Wait between two polls of the store."""
        self._sleep(seconds)

    def _connect(self) -> Store:
        return self._connection

    def _is_held_here(self, store: Store) -> bool:  # noqa: ARG002
        return False

    def _master_address(self, place: Place) -> tuple[str, int] | None:
        if place.group_rank == 0:
            self.store.publish(f"master/{place.attempt}", {"address": "127.0.0.1", "port": 1})
        return super()._master_address(place) if place.group_rank else ("127.0.0.1", 1)


def make_service(
    kind: type[T], store: Store, number: int, rules: MembershipRules, on_lost: Callable[[Loss, int], None]
) -> T:
    """The membership of one launcher."""
    return kind(
        store,
        RUN_ID,
        Member(node_name(number), node_name(number).partition("_")[0], 8),
        rules,
        LauncherCalls(
            budget=lambda: BUDGET,
            progress=lambda: NodeProgress(StepRange(0, int(time.monotonic() * 20)), 20.0, follows_stop_step=True),
            on_lost=on_lost,
            on_store_timeout=lambda *_: None,
        ),
    )


def watch(rendezvous: Rendezvous, placed: Callable[[int], None]) -> None:
    """What a launcher's main thread does with the store, attempt by attempt."""
    while True:
        place, _ = rendezvous.next_attempt()
        placed(place.attempt)
        pause = max(LOOP_SECONDS, poll_seconds(place.group_world_size))
        while True:
            rendezvous.store.stop_proposal(place.attempt)
            if rendezvous.decision() is not None:
                break
            rendezvous.sleep(pause)


def crash(rendezvous: Rendezvous) -> None:
    """End the launcher's attempt as a crash of one of its ranks does."""
    decision = AttemptDecision(RESTART, "rank 17 crashed with exit code 1")
    rendezvous.store.end_attempt(rendezvous.attempt, decision, by=rendezvous.members.me, budget=BUDGET)


class Task:
    """One thread of a launcher, as a greenlet."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.greenlet = greenlet(run)
        self.turn = -1
        """Of its entry in the schedule; an older entry was replaced."""


class Schedule:
    """Runs tasks when they are due."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Task]] = []
        self._turns = itertools.count()
        self._hub = greenlet.getcurrent()
        self.late: list[float] = []
        """Seconds that tasks began after they were due."""

    def at(self, due: float, task: Task) -> None:
        """Run a task at a time, instead of at the one it waits for."""
        task.turn = next(self._turns)
        heapq.heappush(self._heap, (due, task.turn, task))

    def wait(self, due: float, task: Task) -> None:
        """Called by the running task: continue at a time."""
        self.at(due, task)
        self._hub.switch()

    def run(self, until: float) -> None:
        """Run tasks until a time."""
        while (now := time.monotonic()) < until:
            if not self._heap or self._heap[0][0] > now:
                time.sleep(min(until, self._heap[0][0] if self._heap else until) - now)
                continue
            due, turn, task = heapq.heappop(self._heap)
            if turn == task.turn:
                self.late.append(now - due)
                task.greenlet.switch()


class Emulated(MembershipService):
    """Membership whose thread is a task."""

    launcher: Launcher

    def join(self) -> None:
        """Register, and begin with the heartbeats."""
        self.store.register(self._next_heartbeat())
        self.wake()

    def wake(self) -> None:
        """Run the next round at once."""
        self.launcher.schedule.at(time.monotonic(), self.launcher.heart)


class Launcher:
    """One emulated launcher: two tasks."""

    def __init__(self, number: int, port: int, connection: Store, rules: MembershipRules, fleet: Fleet) -> None:
        self.schedule = fleet.schedule
        self.rendezvous = Connected(port, rules, connection, self._sleep)
        self._members = make_service(Emulated, connection, number, rules, lambda *_: fleet.lost())
        self._members.launcher = self
        self.heart = Task(self._beat)
        self.main = Task(lambda: self._run(fleet.placed))

    def start(self) -> None:
        """Begin with the main task."""
        self.schedule.at(time.monotonic(), self.main)

    def silence(self) -> None:
        """Do nothing any more, as on a node without power."""
        self.heart.turn = self.main.turn = -1

    def _sleep(self, seconds: float) -> None:
        self.schedule.wait(time.monotonic() + seconds, self.main)

    def _run(self, placed: Callable[[int], None]) -> None:
        self.rendezvous.join(lambda _store, _held: self._members)
        watch(self.rendezvous, placed)

    def _beat(self) -> None:
        while True:
            self.schedule.wait(self._members.round(), self.heart)


class Fleet:
    """The launchers of one process."""

    def __init__(self, port: int, numbers: range, rules: MembershipRules, two_connections: bool) -> None:
        self.schedule = Schedule()
        self.times: dict[int, list[float]] = defaultdict(list)
        """By attempt, when each launcher had its place and the address of the ranks' store."""
        shared = connect(port)
        self.launchers = [
            Launcher(number, port, connect(port) if two_connections else shared, rules, self) for number in numbers
        ]

        self.losses = 0
        """Nodes that were taken for lost by a launcher of this fleet which coordinated."""

    def lost(self) -> None:
        """A launcher took another for lost."""
        self.losses += 1

    def placed(self, attempt: int) -> None:
        """A launcher has its place."""
        self.times[attempt].append(time.monotonic())

    def command(self, name: str, argument: int) -> Any:
        """Carry out what the parent asks for."""
        if name == "start":
            for launcher in self.launchers:
                launcher.start()
        elif name == "attempt":
            return self.launchers[argument].rendezvous.attempt
        elif name == "crash":
            crash(self.launchers[argument].rendezvous)
        elif name == "losses":
            return self.losses
        elif name == "silence":
            self.launchers[argument].silence()
        elif name == "placed":
            times = self.times[argument]
            return len(times), max(times, default=0.0)
        elif name == "measures":
            found = dict(calls), self.schedule.late
            calls.clear()
            self.schedule.late = []
            return found
        return time.monotonic()


def serve_fleet(pipe: Connection, port: int, numbers: range, rules: MembershipRules, two_connections: bool) -> None:
    """Run a fleet until the pipe is closed."""
    raise_descriptor_limit()
    store_module.PrefixStore = CountedStore  # type: ignore[misc]
    fleet = Fleet(port, numbers, rules, two_connections)
    pipe.send("connected")
    while True:
        fleet.schedule.run(time.monotonic() + 0.02)
        while pipe.poll():
            try:
                pipe.send(fleet.command(*pipe.recv()))
            except EOFError:
                return
