"""One attempt on this node: its rank processes, their slots and their requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from rankwatch_launcher.node.rank_requests import RequestInbox
from rankwatch_launcher.node.slots import NodeSlots
from rankwatch_launcher.stacks.capture import Target


@dataclass
class RankProcess:
    """One rank's process."""

    rank: int
    local_rank: int
    pid: int
    code: int | None = None
    """The exit code, or minus the signal, once it has ended."""


@dataclass(frozen=True)
class Attempt:
    """The attempt that starts or runs on this node."""

    number: int
    slots: NodeSlots
    inbox: RequestInbox
    ranks: tuple[RankProcess, ...] = ()
    world_size: int = 0
    captured: set[str | None] = field(default_factory=set)
    """Incidents for which stacks were captured; None stands for a crash."""

    def target(self, rank: RankProcess) -> Target:
        """Where the stack of one of its ranks is read."""
        file, entering = self.slots.stack_file(rank.local_rank), partial(self.slots.entering, rank.local_rank)
        return Target(rank.rank, rank.local_rank, rank.pid, file, entering)
