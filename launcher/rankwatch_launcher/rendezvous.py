"""A thin wrapper around torch's rendezvous: one attempt number for all nodes, a fresh store for the ranks.

torch keeps one store for the ranks across restarts, where keys of the last attempt make about half of gloo's restarts
fail; here the launcher of group rank 0 holds a new one for each attempt. It also hears from the others why an attempt
ended, before their ranks are gone, so that it can take its own evidence first.
"""

from __future__ import annotations

import time
from typing import Final

from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from rankwatch_launcher.ledger import Ledger, Ruling
from rankwatch_launcher.torch_seams import PrefixStore, Store, TCPStore

BACKENDS: Final = ("c10d", "static")
"""Backends whose store outlives a round, which the ledger needs."""

_POLL_SECONDS: Final = 0.1
_JOIN_SECONDS: Final = 900.0
"""How long a static rendezvous waits for its nodes: torch's default for the dynamic one, too, is of that order."""


class Rendezvous(RendezvousHandler):
    """Wraps a ``c10d`` or ``static`` handler of torch."""

    def __init__(self, inner: RendezvousHandler, max_nodes: int) -> None:
        self._inner = inner
        self._max_nodes = max_nodes
        self._ledger: Ledger | None = None
        self._ranks_store: TCPStore | None = None
        self.attempt = 0
        """The attempt this node takes part in; 0 before the first."""
        self.rank = 0
        self.world_size = 0
        """Nodes in this attempt."""
        self.master_addr = ""

    @property
    def ledger(self) -> Ledger:
        """The job's facts; there after the first rendezvous."""
        assert self._ledger is not None, "the ledger is reached by the first rendezvous"
        return self._ledger

    @property
    def alone(self) -> bool:
        """Whether this is the only node the job can have."""
        return self._max_nodes == 1

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the other nodes; every one of them gets the same attempt number and the same new store for the ranks."""
        info = self._inner.next_rendezvous()
        if self._ledger is None:
            # A connection of its own: torch's may be held by a thread that waits in it.
            connection = _base_of(info.store).clone()  # type: ignore[attr-defined]  # torch's stubs lack it
            self._ledger = Ledger(connection, self.get_run_id())
        if self.get_backend() == "static":
            self.attempt = self._static_round(info.world_size)
            store = self.ledger.attempt_store(self.attempt)
        else:
            # The store that torch returns is prefixed by its round: what is written there is of this round only.
            store = info.store
            if info.rank == 0:
                store.set("rankwatch/attempt", str(self.ledger.next_attempt()))
            self.attempt = int(store.get("rankwatch/attempt"))
        self.rank, self.world_size = info.rank, info.world_size
        bootstrap = self._store_for_ranks(info, store)
        self.master_addr = bootstrap.master_addr
        return RendezvousInfo(store, info.rank, info.world_size, bootstrap)

    def ended_elsewhere(self) -> Ruling | None:
        """How another launcher ruled this attempt to end, or None."""
        return None if self.alone else self.ledger.ruling(self.attempt)

    def num_nodes_waiting(self) -> int:
        """Nodes that wait to join: torch's count, and for a static rendezvous those that came back."""
        if self.alone or self._ledger is None:
            return 0
        if self.get_backend() == "static":
            return max(0, self.ledger.count("joined", 0) - self.attempt * self._max_nodes)
        return self._inner.num_nodes_waiting()

    @property
    def use_agent_store(self) -> bool:
        """The ranks are clients of the store that the launcher of group rank 0 holds."""
        return True

    def get_backend(self) -> str:
        """See torch."""
        return self._inner.get_backend()

    def is_closed(self) -> bool:
        """See torch."""
        return bool(self._inner.is_closed())

    def set_closed(self) -> None:
        """See torch."""
        self._inner.set_closed()  # type: ignore[no-untyped-call]

    def get_run_id(self) -> str:
        """See torch."""
        return self._inner.get_run_id()

    def shutdown(self) -> bool:
        """See torch."""
        return self._inner.shutdown()

    def _static_round(self, world_size: int) -> int:
        """A static rendezvous has no rounds of its own: each node joins once a round, so counting joins tells which."""
        joined = self.ledger.count("joined")
        attempt = (joined - 1) // world_size + 1
        until = time.monotonic() + _JOIN_SECONDS
        while self.ledger.count("joined", 0) < attempt * world_size:
            if time.monotonic() > until:
                raise TimeoutError(f"attempt {attempt} did not start: some of {world_size} nodes have not come")
            time.sleep(_POLL_SECONDS)
        return attempt

    def _store_for_ranks(self, info: RendezvousInfo, store: Store) -> RendezvousStoreInfo:
        assert info.bootstrap_store_info is not None
        address = info.bootstrap_store_info.master_addr
        port = 0
        if info.rank == 0:
            self._ranks_store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
            port = self._ranks_store.port
        return RendezvousStoreInfo.build(info.rank, PrefixStore("rankwatch", store), address, server_port=port)


def _base_of(store: Store) -> Store:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
