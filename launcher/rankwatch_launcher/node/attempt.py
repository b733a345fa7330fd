"""One attempt on this node: its rank processes, their slots and their requests."""

from __future__ import annotations

from dataclasses import dataclass, field

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
        local, slots = rank.local_rank, self.slots
        return Target(rank.rank, local, rank.pid, slots.stack_file(local), lambda: slots.entering(local))
