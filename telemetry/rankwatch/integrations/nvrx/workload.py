"""NVRx's types for the identity of a rank and its requests to the launcher."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from enum import Enum

import rankwatch


class WorkloadAction(Enum):
    """The requests of a rank to its launcher."""

    Continue = 0
    ExcludeThisNode = 1
    ShutdownWorkload = 2


class WorkloadControlRequest:
    """A request, with the reason to report."""

    def __init__(self, action: WorkloadAction, description: str = "<not set>") -> None:
        self.action = action
        self.description = description

    def __str__(self) -> str:
        return f"WorkloadControlRequest(action={self.action}, description={self.description})"


def send(request: WorkloadControlRequest) -> None:
    """Request what it asks for from the launcher, at once; ``Continue`` requests nothing."""
    action = getattr(request.action, "name", str(request.action))
    if action == WorkloadAction.ExcludeThisNode.name:
        rankwatch.exclude_node(request.description)
    elif action == WorkloadAction.ShutdownWorkload.name:
        rankwatch.stop_job(request.description)


@dataclass
class RankInfo:
    """Identity of this process."""

    global_rank: int
    local_rank: int
    host: str
    pid: int

    @staticmethod
    def get_for_current_rank() -> RankInfo:
        """Return the identity by torch's process group if there is one, else by the environment, else rank 0."""
        return RankInfo(
            _number(group_rank() or os.environ.get("RANK") or os.environ.get("SLURM_PROCID"), 0),
            _number(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID"), -1),
            socket.gethostname(),
            os.getpid(),
        )


def _number(text: str | None, otherwise: int) -> int:
    """Return the value of a variable; an invalid one counts as not set, which rankwatch.init() logs."""
    try:
        return int(text) if text else otherwise
    except ValueError:
        return otherwise


def group_rank() -> str | None:
    """Return the rank in torch's process group as text; None without torch or a group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return str(distributed.get_rank())
