"""How this launcher comes into an attempt: it says that it is ready, and waits for a roster with its name in it.

Membership is ours (:mod:`~rankwatch_launcher.coordination.membership`): torch's own rendezvous cannot leave a node
out, restarts for ever when there is one too many, and waits ten minutes for one that is gone. torch makes the store,
and its agent sees
an ordinary ``RendezvousHandler``. The ranks of each attempt get a store of their own, held by the launcher of group
rank 0: keys of an earlier attempt make about half of gloo's restarts fail.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from torch.distributed.elastic.agent.server.api import Worker
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from rankwatch_launcher.agent.torch_compat import DistError, PrefixStore, Store, TCPStore
from rankwatch_launcher.coordination.attempt_log import Ledger
from rankwatch_launcher.coordination.decisions import Ruling
from rankwatch_launcher.coordination.membership import Place
from rankwatch_launcher.coordination.service import Members
from rankwatch_launcher.coordination.store import Closed
from rankwatch_launcher.job.outcome import FINISHED
from rankwatch_launcher.log import logger

BACKENDS: Final = ("c10d", "static")
"""Backends that mean a store of torch at an address, which is all that the launchers need."""
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost", "")

_POLL_SECONDS: Final = 0.02
_NODES_A_POLL: Final = 5000
"""Looks that one store should answer in a second: with more nodes, each looks more seldom."""
_SPEAK_AFTER: Final = 5.0
"""Seconds of waiting after which a launcher says what for."""
_STALE_SECONDS: Final = 30.0
"""How long a launcher waits for the store of an earlier launch to go, before it believes that the job is over."""
_DEFAULT_PORT: Final = 29400
"""torch's, of a ``c10d`` endpoint that names none."""


class Interrupted(Exception):  # noqa: N818  # not an error: an order, or a signal
    """Waiting for an attempt was given up because the launcher is to end."""


class JobOver(Exception):  # noqa: N818
    """The job has ended while this launcher waited for a place in it, or before it came."""

    def __init__(self, closed: Closed) -> None:
        super().__init__(closed.reason)
        self.closed = closed


class Rendezvous(RendezvousHandler):
    """The attempts of one launcher. ``join`` is called once, ``next_attempt`` before each attempt."""

    def __init__(self, parameters: RendezvousParameters, *, join_timeout: float) -> None:
        self._parameters = parameters
        self._join_timeout = join_timeout
        self._host, self._port = parse_rendezvous_endpoint(parameters.endpoint, default_port=0)
        self._ledger: Ledger | None = None
        self._members: Members | None = None
        self._ranks_store: TCPStore | None = None
        self.attempt = 0
        """The attempt this node takes part in; 0 before the first."""
        self.rank = 0
        self.world_size = 0
        """Nodes in this attempt."""
        self.master_addr = ""
        self.interrupted: Callable[[], bool] = lambda: False
        """Asked again and again while waiting: True gives up."""
        self.on_standby: Callable[[Place], None] = lambda _: None
        """Told when this launcher is a spare or parked."""
        self.stands_by = False
        """Whether this launcher is a spare or parked now."""

    def join(self, make: Callable[[Store, bool], Members]) -> None:
        """Connect to the store and come among the other launchers.

        Raises:
            JobOver: training is complete: there is nothing to join.
            RendezvousConnectionError: the store cannot be reached.
            Interrupted: see ``interrupted``.
        """
        store = self._connect()
        ledger = Ledger(store, self.get_run_id())
        members = make(store, self._held_here(store))
        until = time.monotonic() + _STALE_SECONDS
        while (closed := self._closed(members)) is not None:
            if closed.state == FINISHED or time.monotonic() > until:
                raise JobOver(closed)
            # The launchers of the run before are still about to go; the store of this one is not up yet.
            self._pause(0.5)
            store = self._connect()
            ledger, members = Ledger(store, self.get_run_id()), make(store, self._held_here(store))
        self._ledger, self._members = ledger, members
        members.join()

    @property
    def ledger(self) -> Ledger:
        """The job's facts; there once joined."""
        assert self._ledger is not None, "the ledger is reached by joining"
        return self._ledger

    @property
    def members(self) -> Members:
        """The launchers; there once joined."""
        assert self._members is not None, "the launchers are reached by joining"
        return self._members

    @property
    def joined(self) -> bool:
        """Whether this launcher is among the others."""
        return self._members is not None

    @property
    def alone(self) -> bool:
        """Whether no other launcher could find this one: its store is on a port that nobody was told of."""
        return self._port == 0

    def next_attempt(self) -> tuple[Place, RendezvousInfo]:
        """Wait for a place in an attempt after the one this node was in; spares and parked nodes wait here.

        Raises:
            JobOver: the job has ended meanwhile.
            RendezvousTimeoutError: too few nodes came in time; the text says who is missing.
            Interrupted: see ``interrupted``.
        """
        while True:
            place = self._wait()
            self.stands_by = False
            self.members.take_place(place)
            self.attempt, self.rank, self.world_size = place.attempt, place.group_rank, place.group_world_size
            address = self._meet(place)
            if address is not None:
                break
            # It was ruled to end before it began: a node was lost just then.
        self.master_addr = address[0]
        store = self.ledger.attempt_store(place.attempt)
        return place, RendezvousInfo(store, place.group_rank, place.group_world_size, RendezvousStoreInfo(*address))

    def next_rendezvous(self) -> RendezvousInfo:
        """See torch."""
        return self.next_attempt()[1]

    def over(self) -> bool:
        """Whether the attempt this launcher has a place in, as a spare too, was ruled to end."""
        return self.ledger.ruling(self.members.board.newest()) is not None

    def ended_elsewhere(self) -> Ruling | None:
        """How this attempt was ruled to end, or None."""
        return self.ledger.ruling(self.attempt)

    def num_nodes_waiting(self) -> int:
        """Always 0: whether nodes regroup is ruled by the coordinator."""
        return 0

    @property
    def use_agent_store(self) -> bool:
        """The ranks are clients of the store that the launcher of group rank 0 holds."""
        return True

    def get_backend(self) -> str:
        """See torch."""
        return str(self._parameters.backend)

    def is_closed(self) -> bool:
        """See torch."""
        return self._members is not None and self._members.board.closed() is not None

    def set_closed(self) -> None:
        """See torch."""
        raise RendezvousClosedError("a launcher closes the job with its outcome, see Members.close")

    def get_run_id(self) -> str:
        """See torch."""
        return str(self._parameters.run_id)

    def shutdown(self) -> bool:
        """See torch."""
        self._ranks_store = None
        return True

    # Waiting ----------------------------------------------------------------------------------------------------------

    def _wait(self) -> Place:
        members, board, placed = self.members, self.members.board, self.attempt
        members.wait_for_place(self.attempt)
        began = time.monotonic()
        waits_since: float | None = began  # None: it stands by while the others train, and may wait for ever
        said, speak_at, standing_by = "", began + _SPEAK_AFTER, None
        while True:
            newest = board.newest()
            if newest > placed and (place := members.place(newest)) is not None:
                placed, waits_since, self.stands_by = newest, None, place.role != "active"
                if place.role == "active":
                    return place
                if (place.role, place.reason) != standing_by:
                    standing_by = (place.role, place.reason)
                    logger.info("this node is %s: %s", "a spare" if place.role == "spare" else "parked", place.reason)
                    self.on_standby(place)
            if (closed := board.closed()) is not None:
                raise JobOver(closed)
            now = time.monotonic()
            if waits_since is None and self.ledger.ruling(placed) is not None:
                waits_since, speak_at = now, now + _SPEAK_AFTER  # nobody trains any more: it waits like all others
            if waits_since is not None and now - waits_since > self._join_timeout:
                why = board.waiting() or "no node has answered for the job"
                raise RendezvousTimeoutError(f"{why}; given up after {self._join_timeout:g} s (join_timeout)")
            if now > speak_at and (words := board.waiting()) and words != said:
                said = words
                logger.info("%s", words)
            self._pause(_POLL_SECONDS if now - began < 2.0 else 5 * _POLL_SECONDS)

    def _meet(self, place: Place) -> tuple[str, int] | None:
        """Where the ranks of an attempt meet; None when it was ruled to end before."""
        ledger, name = self.ledger, f"master/{place.attempt}"
        if place.group_rank == 0:
            address = self._address()
            try:
                self._ranks_store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
            except DistError as error:
                where, detail = f"{address}, this node's own name", str(error).splitlines()[0]
                raise RendezvousError(
                    f"the ranks' store cannot be reached at {where}: give --local-addr ({detail})"
                ) from error
            ledger.publish(name, {"address": address, "port": self._ranks_store.port})
            return address, self._ranks_store.port
        while (fact := ledger.find(name)) is None:
            if ledger.ruling(place.attempt) is not None:
                return None
            self._pause(2 * _POLL_SECONDS)
        return str(fact["address"]), int(fact["port"])

    def _address(self) -> str:
        """Where the ranks of other nodes reach a store of this one."""
        if self._host in LOOPBACK:
            return "127.0.0.1"
        return str(self._parameters.local_addr or socket.getfqdn())

    def _pause(self, seconds: float) -> None:
        if self.interrupted():
            raise Interrupted
        time.sleep(max(seconds, self.world_size / _NODES_A_POLL))

    # The store --------------------------------------------------------------------------------------------------------

    def _connect(self) -> Store:
        """Reach the store, or hold it; whoever comes before its holder waits."""
        began, said = time.monotonic(), False
        while True:
            left = began + self._join_timeout - time.monotonic()
            if not said and time.monotonic() - began > _SPEAK_AFTER:
                said = True
                logger.info("waiting for the launcher that holds the rendezvous store at %s", self._parameters.endpoint)
            # torch would wait for a minute in one call, deaf to signals and orders.
            if self._may_hold() or self._listens() or left <= 0:
                try:
                    return create_backend(self._for_backend())[1]
                except RendezvousConnectionError:
                    if left <= 0:
                        raise
            self._pause(1.0)

    def _may_hold(self) -> bool:
        """Whether the store could be on this machine."""
        if (told := self._for_backend().get_as_bool("is_host")) is not None:
            return told
        try:
            for family, _, _, _, address in socket.getaddrinfo(self._host or "localhost", 0, type=socket.SOCK_STREAM):
                with contextlib.suppress(OSError), socket.socket(family) as probe:
                    probe.bind(address)
                    return True
        except OSError:
            return True  # a name that is not known: torch says so better
        return False

    def _listens(self) -> bool:
        try:
            with socket.create_connection((self._host, self._port or _DEFAULT_PORT), 1.0):
                return True
        except OSError:
            return False

    def _held_here(self, store: Store) -> bool:
        """Whether the store ends with this process: one of its sockets listens on the store's port."""
        while isinstance(store, PrefixStore):
            store = store.underlying_store
        port = f"{store.port:04X}"  # type: ignore[attr-defined]  # torch's stubs lack it
        listening = set()
        for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
            with contextlib.suppress(OSError), open(table) as file:
                rows = [line.split() for line in file.readlines()[1:]]
                listening |= {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and row[1].endswith(f":{port}")}
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(descriptor) in listening:
                    return True
        return False

    def _for_backend(self) -> RendezvousParameters:
        given = self._parameters
        config: dict[str, Any] = dict(given.config)
        if given.backend == "static":
            config["is_host"] = int(config.get("rank", 0)) == 0
        return RendezvousParameters("c10d", given.endpoint, given.run_id, given.min_nodes, given.max_nodes, **config)

    @staticmethod
    def _closed(members: Members) -> Closed | None:
        try:
            return members.board.closed()
        except DistError:
            return None


def workers_of(place: Place, local_world_size: int) -> list[Worker]:
    """The ranks of one node, as torch's agent has them."""
    return [
        Worker(
            local_rank=local,
            global_rank=place.first_rank + local,
            role_rank=place.first_role_rank + local,
            world_size=place.world_size,
            role_world_size=place.role_world_size,
        )
        for local in range(local_world_size)
    ]
