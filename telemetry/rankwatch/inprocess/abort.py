"""Ends what torch.distributed waits for, and takes its process groups down, so that the function can begin anew."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

from rankwatch.inprocess import connections

_log = logging.getLogger("rankwatch")


def _distributed() -> Any:
    """torch.distributed, where the script has imported it."""
    return importlib.import_module("torch.distributed") if "torch.distributed" in sys.modules else None


def abort_collectives(before: frozenset[str]) -> None:
    """Unblock every thread of this process that waits for other ranks. From the watching thread; raises nothing.

    NCCL's communicators are aborted by torch; connections of anything else opened since ``before`` are cut.
    """
    try:
        for group in _groups():
            for backend in _backends(group):
                if hasattr(backend, "abort"):
                    backend.abort()
    except Exception:  # noqa: BLE001 - the rest must happen; what stays blocked is ended by the watchdog
        _log.warning("process groups could not be aborted", exc_info=True)
    try:
        connections.cut_since(before)
    except Exception:  # noqa: BLE001 - as above
        _log.warning("connections could not be cut", exc_info=True)


def destroy_groups() -> None:
    """Forget all process groups, once nothing waits in them any more. From the function's thread; raises nothing."""
    distributed = _distributed()
    if distributed is None or not distributed.is_available():
        return
    try:
        if distributed.is_initialized():
            distributed.destroy_process_group()
    except Exception:  # noqa: BLE001 - groups that are broken may say so; what counts is that they are forgotten
        _log.info("a broken process group complained", exc_info=True)
    if distributed.is_initialized():
        c10d = distributed.distributed_c10d
        c10d._world.pg_map.clear()
        c10d._world.pg_names.clear()
        c10d._update_default_pg(None)


def groups_exist() -> bool:
    """Whether the script has made a process group."""
    return bool(_groups())


def _groups() -> list[Any]:
    distributed = _distributed()
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return []
    return list(distributed.distributed_c10d._world.pg_map)


def _backends(group: Any) -> list[Any]:
    """The backends of a process group that know how to abort; gloo's does nothing when asked."""
    torch: Any = importlib.import_module("torch")
    found = []
    for device in getattr(group, "_device_types", []):
        backend = group._get_backend(torch.device(device))
        if backend not in found:
            found.append(backend)
    return found
