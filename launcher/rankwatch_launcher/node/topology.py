"""Where this node is: as it was told, as Slurm says, and the NVLink domain of its GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rankwatch.contract import topology
from rankwatch_launcher.checks.gpu import Gpus, opened
from rankwatch_launcher.schedulers import slurm

NVLINK: Final = "nvlink"
"""Key of the label of an NVLink domain."""
_DONE: Final = 3
"""``NVML_GPU_FABRIC_STATE_COMPLETED``."""


def labels(
    told: Sequence[str], env: Mapping[str, str], domain: Callable[[], str] = lambda: nvlink_domain()
) -> tuple[str, ...]:
    """The labels of this node, the widest first.

    Args:
        told: by ``--topology-label``.
        domain: asks for the NVLink domain; empty: there is none.
    """
    found = domain()
    return topology.path((*told, *slurm.topology(env), *((f"{NVLINK}={found}",) if found else ())))


def nvlink_domain() -> str:
    """The NVLink domain that the GPUs of this node share with those of others: cluster and clique; empty: none."""
    gpus = opened()
    if not isinstance(gpus, Gpus):
        return ""
    try:
        found = {_domain(gpus, handle) for handle in gpus.handles}
    except gpus.nvml.NVMLError:
        return ""  # a GPU is lost: told by the checks
    return found.pop() if len(found) == 1 else ""


def _domain(gpus: Gpus, handle: Any) -> str:
    info = gpus.fabric(handle)
    if info is None or info.state != _DONE or info.status:
        return ""
    cluster = bytes(info.clusterUuid)
    # An HGX board with an NVSwitch of its own has none: the node is the domain.
    return f"{cluster.hex()}.{info.cliqueId}" if any(cluster) else ""
