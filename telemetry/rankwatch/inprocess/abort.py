"""Unblocks pending collectives of torch.distributed and destroys its process groups."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

from rankwatch.inprocess import connections

_log = logging.getLogger("rankwatch")


def _distributed() -> Any:
    """Return torch.distributed, if the script has imported it."""
    return importlib.import_module("torch.distributed") if "torch.distributed" in sys.modules else None


def abort_collectives(sockets_before: frozenset[str]) -> None:
    """Unblock every thread of this process that waits for other ranks. Called by the monitor thread; never raises.

    NCCL communicators are aborted; TCP connections opened since ``sockets_before`` was taken are shut down.
    """
    try:
        for group in _groups():
            for backend in _backends(group):
                if hasattr(backend, "abort"):
                    backend.abort()
    except Exception:  # noqa: BLE001 - torch internals; a thread that stays blocked is ended by the watchdog
        _log.warning("process groups could not be aborted", exc_info=True)
    try:
        connections.shutdown_since(sockets_before)
    except Exception:  # noqa: BLE001 - as above
        _log.warning("connections could not be shut down", exc_info=True)


def destroy_groups() -> None:
    """Destroy all process groups, once no thread waits in them. Called by the function's thread; never raises."""
    distributed = _distributed()
    if distributed is None or not distributed.is_available():
        return
    try:
        if distributed.is_initialized():
            distributed.destroy_process_group()
    except Exception:  # noqa: BLE001 - broken groups may raise; they are removed from torch's registry below
        _log.info("destroying a broken process group raised", exc_info=True)
    if distributed.is_initialized():
        c10d = distributed.distributed_c10d
        c10d._world.pg_map.clear()
        c10d._world.pg_names.clear()
        c10d._update_default_pg(None)


def groups_exist() -> bool:
    """Whether the script has created a process group."""
    return bool(_groups())


def _groups() -> list[Any]:
    distributed = _distributed()
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return []
    return list(distributed.distributed_c10d._world.pg_map)


def _backends(group: Any) -> list[Any]:
    """Return the backends of a process group. The ``abort`` of gloo does nothing."""
    torch: Any = importlib.import_module("torch")
    found = []
    for device in getattr(group, "_device_types", []):
        backend = group._get_backend(torch.device(device))
        if backend not in found:
            found.append(backend)
    return found
