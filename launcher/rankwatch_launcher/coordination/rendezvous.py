"""How this launcher gets into an attempt: it announces that it is ready, and waits for a roster that lists it.

Membership is the launchers' own (:mod:`~rankwatch_launcher.coordination.membership`): torch's rendezvous cannot exclude
a node, restarts endlessly with one node too many, and waits ten minutes for a lost one. torch creates the store, and
its agent uses an ordinary ``RendezvousHandler``. The ranks of each attempt get a store of their own, held by the
launcher of group rank 0: with keys of an earlier attempt about half of gloo's restarts fail.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Protocol

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

from rankwatch.contract.enums import NodeRole
from rankwatch.contract.node_checks import CheckResult
from rankwatch_launcher import procfs
from rankwatch_launcher.coordination.decisions import AttemptDecision
from rankwatch_launcher.coordination.membership import Place, poll_seconds
from rankwatch_launcher.coordination.service import MembershipService
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.coordination.store_file import STORE_TYPE, MasterAddress, StoreFile, by_file
from rankwatch_launcher.log import logger
from rankwatch_launcher.open_files import allow_connections
from rankwatch_launcher.outcome import FINISHED, Outcome
from rankwatch_launcher.torch_compat import DistError, Store, TCPStore, store_port

BACKENDS: Final = ("c10d", "static")
"""Backends that stand for a torch store at an address, which is all that the launchers need."""
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost", "")

_BACKLOG: Final = 4096
_POLL_SECONDS: Final = 0.02
_LOG_AFTER: Final = 5.0
"""Seconds of waiting after which the reason is logged."""
_STALE_SECONDS: Final = 30.0
"""How long a closed store may belong to the previous launch, whose launchers are still leaving."""
_CONNECTIONS: Final = 2
"""Of each launcher with the store, and of each rank with the ranks' store: two threads."""
_DEFAULT_PORT: Final = 29400
"""torch's, for a ``c10d`` endpoint without a port."""


class Interrupted(Exception):  # noqa: N818  # not an error: a directive or a signal
    """Waiting for an attempt was interrupted because the launcher is to end."""


class JobOver(Exception):  # noqa: N818
    """The job ended before this launcher got a place in it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class Gate(Protocol):
    """Checks of this node before each attempt (:mod:`rankwatch_launcher.checks.gate`)."""

    def begin(self) -> None:
        """Check the node anew."""

    def poll(self) -> tuple[CheckResult, ...] | None:
        """The checks that fail; None: they are under way. Those of a node that failed are repeated."""


class Rendezvous(RendezvousHandler):
    """The attempts of one launcher. ``join`` is called once, ``next_attempt`` before each attempt."""

    def __init__(self, parameters: RendezvousParameters, *, join_timeout: float) -> None:
        self._parameters = parameters
        self._join_timeout = join_timeout
        self._file = StoreFile(parameters.endpoint, parameters.run_id) if by_file(parameters.config) else None
        endpoint = "" if self._file is not None else parameters.endpoint
        self._host, self._port = parse_rendezvous_endpoint(endpoint, default_port=_DEFAULT_PORT)
        self._members: MembershipService | None = None
        self._ranks_store: TCPStore | None = None
        self.attempt = 0
        """The attempt this node takes part in; 0 before the first."""
        self.rank = 0
        self.world_size = 0
        """Nodes in this attempt."""
        self.master_addr = ""
        self.interrupted: Callable[[], bool] = lambda: False
        """Polled while waiting: True raises :class:`Interrupted`."""
        self.on_standby: Callable[[Place], None] = lambda _: None
        """Called when this launcher becomes a spare or is parked."""
        self.standing_by = False
        """Whether this launcher is a spare or parked."""
        self.before_joining: Callable[[Store, bool, Callable[[float], None]], None] | None = None
        """Called once with the store, whether it is held here, and what waits between two looks at it."""
        self.gate: Gate | None = None
        """None: every node takes part."""

    def join(self, make: Callable[[Store, bool], MembershipService]) -> None:
        """Connect to the store and register with the other launchers.

        Raises:
            JobOver: the job has ended: there is nothing to join.
            RendezvousConnectionError: the store cannot be reached.
            Interrupted: see ``interrupted``.
        """
        store = self._connect()
        members = make(store, self._is_held_here(store))
        until = time.monotonic() + _STALE_SECONDS
        while (outcome := _outcome(members)) is not None:
            if outcome.state == FINISHED or time.monotonic() > until:
                raise JobOver(outcome)
            # The launchers of the previous launch are still leaving; the store of this one is not up yet.
            self._pause(0.5)
            store = self._connect()
            members = make(store, self._is_held_here(store))
        if self.before_joining is not None:
            self.before_joining(store, self._is_held_here(store), self._pause)
        self._members = members
        members.join()

    def connect(self) -> tuple[Store, bool]:
        """Connect to the store only; whether it is held here.

        Raises:
            RendezvousConnectionError: it cannot be reached.
        """
        store = self._connect()
        return store, self._is_held_here(store)

    @property
    def members(self) -> MembershipService:
        """Membership; available after ``join``."""
        assert self._members is not None, "join() comes first"
        return self._members

    @property
    def store(self) -> JobStore:
        """The job's shared state; available after ``join``."""
        return self.members.store

    @property
    def joined(self) -> bool:
        """Whether this launcher is registered."""
        return self._members is not None

    @property
    def alone(self) -> bool:
        """Whether no other launcher can join: the store is on a port that is not published."""
        return self._port == 0

    def next_attempt(self) -> tuple[Place, RendezvousInfo]:
        """Wait for an active place in an attempt after this node's last; spares and parked nodes wait here.

        Raises:
            JobOver: the job has ended meanwhile.
            RendezvousTimeoutError: too few nodes came in time; the text names the missing ones.
            Interrupted: see ``interrupted``.
        """
        while True:
            place = self._wait()
            self.standing_by = False
            self.members.take_place(place)
            self.attempt, self.rank, self.world_size = place.attempt, place.group_rank, place.group_world_size
            address = self._master_address(place)
            if address is not None:
                break
            # The attempt was decided to end before it began: a node was lost just then.
        self.master_addr = address[0]
        store = self.store.attempt_store(place.attempt)
        return place, RendezvousInfo(store, place.group_rank, place.group_world_size, RendezvousStoreInfo(*address))

    def attempt_ended(self) -> bool:
        """Whether the newest attempt, in which this launcher may be a spare, was decided to end."""
        return self.store.decision(self.store.newest_attempt()) is not None

    def decision(self) -> AttemptDecision | None:
        """How this node's attempt was decided to end, or None."""
        return self.store.decision(self.attempt)

    # torch's interface ------------------------------------------------------------------------------------------------

    def next_rendezvous(self) -> RendezvousInfo:
        """See torch."""
        return self.next_attempt()[1]

    def num_nodes_waiting(self) -> int:
        """Always 0: the coordinator decides whether nodes regroup."""
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
        return self._members is not None and self.store.outcome() is not None

    def set_closed(self) -> None:
        """See torch."""
        raise RendezvousClosedError("a launcher closes the job with its outcome: JobStore.close()")

    def get_run_id(self) -> str:
        """See torch."""
        return str(self._parameters.run_id)

    def shutdown(self) -> bool:
        """See torch."""
        self._ranks_store = None
        if self._file is not None:
            self._file.withdraw()
        return True

    # Waiting ----------------------------------------------------------------------------------------------------------

    def _wait(self) -> Place:
        members, store, placed = self.members, self.store, self.attempt
        ready_after = self.attempt
        announced = self._announce(ready_after, None, anew=True)
        began = time.monotonic()
        waiting_since: float | None = began  # None: it stands by while the others train, without a timeout
        logged, log_at, standby = "", began + _LOG_AFTER, None
        while True:
            announced = self._announce(ready_after, announced)
            newest = store.newest_attempt()
            parked = standby is not None and standby[0] is NodeRole.PARKED  # it may become a spare of this attempt
            if (newest > placed or parked) and (place := members.place(newest)) is not None:
                if newest > placed:
                    placed, waiting_since = newest, None
                self.standing_by = place.role is not NodeRole.ACTIVE
                if not self.standing_by:
                    return place
                if (place.role, place.reason) != standby:
                    standby = (place.role, place.reason)
                    role = "a spare" if place.role is NodeRole.SPARE else "parked"
                    logger.info("this node is %s: %s", role, place.reason)
                    self.on_standby(place)
            if (outcome := store.outcome()) is not None:
                raise JobOver(outcome)
            now = time.monotonic()
            if waiting_since is None and store.decision(placed) is not None:
                waiting_since, log_at = now, now + _LOG_AFTER  # training has stopped: wait like the others
                if placed > ready_after and self.gate is not None:
                    ready_after = placed
                    announced = self._announce(ready_after, announced, anew=True)
            if waiting_since is not None and now - waiting_since > self._join_timeout:
                why = store.waiting_reason() or "no node has answered for the job"
                raise RendezvousTimeoutError(f"{why}; gave up after {self._join_timeout:g} s (join_timeout)")
            if now > log_at and (reason := store.waiting_reason()) and reason != logged:
                logged = reason
                logger.info("%s", reason)
            self._pause(_POLL_SECONDS if now - began < 2.0 else 5 * _POLL_SECONDS)

    def _announce(
        self, ready_after: int, before: tuple[CheckResult, ...] | None, *, anew: bool = False
    ) -> tuple[CheckResult, ...] | None:
        """Announce that this node is ready, or the checks that it fails, unless that was said; return what was."""
        if self.gate is None:
            if anew:
                self.members.wait_for_place(ready_after)
            return ()
        if anew:
            self.gate.begin()
            return None
        failures = self.gate.poll()
        if failures is not None and failures != before:
            self.members.wait_for_place(ready_after, failures)
        return failures if failures is not None else before

    def _master_address(self, place: Place) -> tuple[str, int] | None:
        """Address of the ranks' store for an attempt; None when the attempt was decided to end before."""
        store, name = self.store, f"master/{place.attempt}"
        if place.group_rank == 0:
            address = self._own_address()
            allow_connections(_CONNECTIONS * (place.world_size + self._parameters.max_nodes))
            self._ranks_store = _reachable_store(address, self._only_on(address))
            store.publish(name, {"address": address, "port": self._ranks_store.port})
            return address, self._ranks_store.port
        while (found := store.find(name, MasterAddress)) is None:
            if store.decision(place.attempt) is not None:
                return None
            self._pause(2 * _POLL_SECONDS)
        return found.address, found.port

    def _own_address(self) -> str:
        """Where the ranks of other nodes reach a store of this one."""
        if self._host in LOOPBACK:
            return "127.0.0.1"
        return str(self._parameters.local_addr or socket.getfqdn())

    def sleep(self, seconds: float) -> None:
        """Wait between two polls of the store."""
        time.sleep(seconds)

    def _pause(self, seconds: float) -> None:
        if self.interrupted():
            raise Interrupted
        self.sleep(max(seconds, poll_seconds(max(self.world_size, self._parameters.min_nodes))))

    # The store --------------------------------------------------------------------------------------------------------

    def _connect(self) -> Store:
        """Connect to the store, or host it; launchers that come before its host wait."""
        if self._file is not None:
            return self._connect_by_file(self._file)
        began, logged = time.monotonic(), False
        while True:
            left = began + self._join_timeout - time.monotonic()
            if not logged and time.monotonic() - began > _LOG_AFTER:
                logged = True
                logger.info("waiting for the launcher that hosts the rendezvous store at %s", self._parameters.endpoint)
            # torch would block for a minute in one call, without handling signals or directives.
            if may_host := self._may_host():
                allow_connections(_CONNECTIONS * self._parameters.max_nodes)
            if may_host or self._is_listening() or left <= 0:
                try:
                    return self._host_here() if may_host and self._only_on(self._host) else self._torchs_store()
                except RendezvousConnectionError:
                    if left <= 0:
                        raise
            self._pause(1.0)

    def _connect_by_file(self, file: StoreFile) -> Store:
        """Connect to the store of which the file has the address, or host it and write its address there."""
        while True:
            found = file.address()
            if found is not None:
                self._host, self._port = found.address, found.port
                if self._is_listening():
                    return self._torchs_store(is_host=False)
            # There is none, or it is of an earlier launch.
            host = str(self._parameters.local_addr or socket.getfqdn())
            allow_connections(_CONNECTIONS * self._parameters.max_nodes)
            mine = _reachable_store(host, self._only_on(host))
            if file.claim(found, MasterAddress(host, mine.port)):
                self._host, self._port = host, mine.port
                return mine
            self._pause(_POLL_SECONDS)

    def _host_here(self) -> Store:
        """Host the store on its own address alone, or connect to the launcher that does; torch's listens on all."""
        timeout = timedelta(seconds=self._backend_parameters().get_as_int("read_timeout", 60) or 60)
        try:
            return hosted_store(self._host, self._port, self._only_on(self._host), timeout=timeout)
        except OSError:  # another launcher of this machine has the port
            return self._torchs_store(is_host=False)

    def _only_on(self, host: str) -> str:
        return only_on(host, alone=self._parameters.max_nodes == 1)

    def _torchs_store(self, **config: Any) -> Store:
        store: Store = create_backend(self._backend_parameters(**config))[1]
        return store

    def _may_host(self) -> bool:
        """Whether the store's address may be this machine's."""
        if (is_host := self._backend_parameters().get_as_bool("is_host")) is not None:
            return is_host
        try:
            return bool(_own_addresses(self._host or "localhost"))
        except OSError:
            return True  # an unknown host name: torch's error is clearer

    def _is_listening(self) -> bool:
        try:
            with socket.create_connection((self._host, self._port), 1.0):
                return True
        except OSError:
            return False

    def host_has_ended(self) -> bool:
        """Whether the launcher that holds the store is gone: its host answers, and nothing listens there any more."""
        try:
            with socket.create_connection((self._host, self._port), 1.0):
                return False
        except ConnectionRefusedError:
            return True
        except OSError:
            return False

    def _is_held_here(self, store: Store) -> bool:
        """Whether the store ends with this process: one of its sockets listens on the store's port."""
        port = f"{store_port(store) or 0:04X}"
        listening = set[int]()
        for table in ("tcp", "tcp6"):
            rows = map(str.split, procfs.text(procfs.PROC / "self/net" / table).splitlines()[1:])
            listening |= {int(row[9]) for row in rows if row[3] == "0A" and row[1].endswith(f":{port}")}
        return not listening.isdisjoint(procfs.sockets())

    def _backend_parameters(self, **more: Any) -> RendezvousParameters:
        given = self._parameters
        config: dict[str, Any] = {**given.config, **more}
        config.pop(STORE_TYPE, None)
        if given.backend == "static" and "is_host" not in more:
            config["is_host"] = int(config.get("rank", 0)) == 0
        endpoint = given.endpoint if self._file is None else _endpoint(self._host, self._port)
        return RendezvousParameters("c10d", endpoint, given.run_id, given.min_nodes, given.max_nodes, **config)


def only_on(host: str, *, alone: bool = False) -> str:
    """The address on which a store for clients of ``host`` listens; empty: on all.

    A name may have several addresses, and other hosts may find another one where it is loopback here, as Debian has its
    own name; ``alone``: there are no clients on other hosts.
    """
    if host in LOOPBACK:
        return "::1" if host == "::1" else "127.0.0.1"
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        own = sorted(set(_own_addresses(host)))
    except OSError:
        return ""
    if own and all(ipaddress.ip_address(address).is_loopback for address in own):
        return own[0] if alone else ""
    return own[0] if len(own) == 1 else ""


def _own_addresses(host: str) -> list[str]:
    """Those of a name's addresses that are this machine's.

    Raises:
        OSError: the name is unknown.
    """
    found = []
    for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.bind(address)
            found.append(str(address[0]))
    return found


def hosted_store(host: str, port: int, address: str, **options: Any) -> TCPStore:
    """A store in this process; whoever reaches its port can disturb the job, so it listens where it must.

    ``address``: where it listens, see :func:`only_on`.

    Raises:
        OSError: the port is taken.
        DistError: torch cannot make it.
    """
    if not address:
        return TCPStore(host, port, is_master=True, wait_for_workers=False, **options)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
        port = listener.getsockname()[1]
        return TCPStore(
            address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), **options
        )


def _reachable_store(host: str, address: str) -> TCPStore:
    """A store at a free port, for clients that reach this node as ``host``.

    Raises:
        RendezvousError: they cannot.
    """
    try:
        return hosted_store(host, 0, address)
    except DistError as error:
        detail = str(error).splitlines()[0]
        raise RendezvousError(
            f"a store cannot be reached at {host}, this node's own name: give --local-addr ({detail})"
        ) from error


def _endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _outcome(members: MembershipService) -> Outcome | None:
    try:
        return members.store.outcome()
    except DistError:
        return None


def workers_of(place: Place, local_world_size: int) -> list[Worker]:
    """The ranks of one node, as torch's agent represents them."""
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
