"""A rendezvous by a file (``--rdzv-conf store_type=file``), which holds the address of the launchers' store.

torch keeps the whole rendezvous in the file, which only grows: each write is appended. Heartbeats would fill it, and
each launcher would read them all. Here the first launcher hosts the store, and writes its address there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousError

from rankwatch.contract.messages import read_text
from rankwatch_launcher.torch_compat import DistError

STORE_TYPE: Final = "store_type"
FILE, TCP = "file", "tcp"


def store_type(config: Mapping[str, Any]) -> str:
    """The kind of store that ``--rdzv-conf`` names."""
    return str(config.get(STORE_TYPE, TCP)).strip().lower()


def by_file(config: Mapping[str, Any]) -> bool:
    """Whether ``--rdzv-conf`` names a file as the store."""
    return store_type(config) == FILE


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """Where a store is."""

    address: str
    port: int

    def __post_init__(self) -> None:
        """Refuse a port that is none."""
        if not 0 < self.port < 1 << 16:
            raise ValueError(f"{self.port} is no port")


class StoreFile:
    """The file, as far as one job is concerned. torch locks it, and each write is one record."""

    def __init__(self, path: str, run_id: str) -> None:
        self._path, self._key = path, f"rankwatch/{run_id}/address"
        self._own = ""

    def address(self) -> MasterAddress | None:
        """The address in it; None when it has none.

        Raises:
            RendezvousError: the file cannot be used.
        """
        text = self._text()
        try:
            return read_text(MasterAddress, text) if text else None
        except ValueError:
            return None

    def claim(self, found: MasterAddress | None, own: MasterAddress) -> bool:
        """Replace what :meth:`address` returned; False when another launcher was first."""
        text, before = json.dumps(asdict(own)), self._text()
        if self.address() != found:
            return False
        held = FileStore(self._path).compare_set(self._key, before, text) == text.encode()
        self._own = text if held else self._own
        return held

    def withdraw(self) -> None:
        """Remove the address, if this launcher wrote it: its port may become another program's."""
        if self._own:
            with contextlib.suppress(DistError):
                FileStore(self._path).compare_set(self._key, self._own, "")

    def _text(self) -> str:
        try:
            store = FileStore(self._path)
            return store.get(self._key).decode(errors="replace") if store.check([self._key]) else ""
        except DistError as error:
            raise RendezvousError(f"{self._path} cannot hold the rendezvous: {str(error).splitlines()[0]}") from error
