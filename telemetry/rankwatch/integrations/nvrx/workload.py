"""What NVRx's client says about who a rank is and what it asks of its launcher."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from enum import Enum


class WorkloadAction(Enum):
    """What a rank may ask of its launcher."""

    Continue = 0
    ExcludeThisNode = 1
    ShutdownWorkload = 2


class WorkloadControlRequest:
    """One such request, with the reason that is shown wherever it is acted on."""

    def __init__(self, action: WorkloadAction, description: str = "<not set>") -> None:
        self.action = action
        self.description = description

    def __str__(self) -> str:
        return f"WorkloadControlRequest(action={self.action}, description={self.description})"


@dataclass
class RankInfo:
    """Who this process is."""

    global_rank: int
    local_rank: int
    host: str
    pid: int

    @staticmethod
    def get_for_current_rank() -> RankInfo:
        """Of torch's process group if there is one, else of the environment; a process that is alone is rank 0."""
        return RankInfo(
            _number(group_rank() or os.environ.get("RANK") or os.environ.get("SLURM_PROCID"), 0),
            _number(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID"), -1),
            socket.gethostname(),
            os.getpid(),
        )


def _number(text: str | None, otherwise: int) -> int:
    """What a variable says; what makes no sense counts as not set, and rankwatch.init() says so."""
    try:
        return int(text) if text else otherwise
    except ValueError:
        return otherwise


def group_rank() -> str | None:
    """The rank in torch's process group, as text; None: torch is not imported, or there is no group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return str(distributed.get_rank())
