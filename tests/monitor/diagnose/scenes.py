"""Reports of nodes for tests: what the collector writes, rank by rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rankwatch.contract.diagnosis import NodeReport, SeenExit, SeenRank
from rankwatch.contract.enums import ProcessState, WaitKind
from rankwatch.contract.messages import Collective, Frame, RankStack, Usage, Wait

JOB = "10.0.0.1:29500"
AT = 1_000_000.0
SPAN = 6.5
OWN = Frame("main", "/src/train.py", 40)


def call(name: str = "all_reduce", line: int = 40) -> tuple[Frame, ...]:
    """A stack that waits for peers."""
    torch = Frame(name, "/x/site-packages/torch/distributed/distributed_c10d.py", 2900)
    return torch, replace(OWN, line=line)


def at(function: str = "evaluate", line: int = 12) -> tuple[Frame, ...]:
    """A stack in the script's own code."""
    return Frame(function, "/src/train.py", line), OWN


def stands(rank: int, *, name: str = "all_reduce", line: int = 40, **more: Any) -> SeenRank:
    """It waits for its peers, at one line in all looks."""
    return seen(rank, call(name, line), usage(wait=Wait(WaitKind.PEERS)), **more)


def locked(rank: int, **more: Any) -> SeenRank:
    """It waits for a lock that nobody gives back."""
    return seen(rank, at("load"), usage(wait=Wait(WaitKind.THREAD)), **more)


def sleeps(rank: int, seconds: float | None = None, **more: Any) -> SeenRank:
    """It sleeps."""
    return seen(rank, at("poll"), usage(wait=Wait(WaitKind.TIMED, seconds=seconds)), **more)


def works(rank: int, **more: Any) -> SeenRank:
    """It computes."""
    return seen(rank, at("evaluate"), usage(main_cpu=6.0, same_stack=0.0, wakeups=3), **more)


def trains(rank: int, **more: Any) -> SeenRank:
    """It goes from step to step, and every look found it in a collective."""
    return seen(rank, call(), usage(main_cpu=0.1, wakeups=400, wait=Wait(WaitKind.PEERS)), **more)


def usage(**more: Any) -> Usage:
    """What seven looks show of a process that does nothing."""
    known = {"same_stack": SPAN, "same_functions": SPAN, "new_stack": SPAN, **more}
    return Usage(SPAN, 7, **known)


def seen(
    rank: int,
    frames: tuple[Frame, ...],
    used: Usage,
    *,
    state: ProcessState = ProcessState.ALIVE,
    world: int = 4,
    error: str = "",
    collectives: tuple[Collective, ...] = (),
    **more: Any,
) -> SeenRank:
    """One rank."""
    stack = RankStack(rank, 100 + rank, "py-spy", frames, state, error, collectives, usage=used)
    known = {"job": JOB, "world_size": world, "local_rank": rank, "local_world_size": world, "launcher": "torchrun"}
    return SeenRank(rank=rank, pid=100 + rank, stack=stack, **{**known, "age": 600.0, **more})


def report(*ranks: SeenRank, host: str = "n0", exits: Sequence[SeenExit] = ()) -> NodeReport:
    """What one node's collector has written."""
    return NodeReport(host, AT, SPAN, ranks, tuple(exits))
