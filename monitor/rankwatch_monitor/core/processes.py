"""What launchers report of the ranks' processes: started, exited, restarting, and how it all ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwatch.contract.enums import ProcessEventKind
from rankwatch.contract.messages import ProcessEvent
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.facts import Node, ending_of
from rankwatch_monitor.core.hang import node_loss
from rankwatch_monitor.core.hang.blame import signal_number
from rankwatch_monitor.core.incident import notices, stop_request
from rankwatch_monitor.core.ranks import ALIVE, EXITED

if TYPE_CHECKING:
    from rankwatch_monitor.core.job import Job


def take(job: Job, event: ProcessEvent, now: float) -> None:
    """Take one event of a process into a job, at ``now``."""
    node = job.nodes.get(event.node)
    if node is not None:
        node.seen = now
    at = now - event.age
    match event.kind:
        case ProcessEventKind.STARTED:
            if node is not None and node.attempt == 0 and _is_of_another_launch(job, event, node):
                job.launched_anew(now)
            if event.attempt > job.attempt:
                job.begin_attempt(event.attempt, at, event.world_size)
            if event.attempt == job.attempt and event.rank is not None:
                _started(job, event, event.rank, node)
        case ProcessEventKind.EXITED:
            if event.attempt == job.attempt and event.rank is not None:
                _exited(job, event, event.rank, at)
        case ProcessEventKind.RESTARTING:
            # Every node of a job says so; the first one counts.
            if event.attempt > job.restarting_attempt:
                job.restarting_attempt = event.attempt
                job.restarts += 1
        case ProcessEventKind.NODE_LOST:
            node_loss.told(job, event, at)
        case ProcessEventKind.NOTICE:
            notices.told(job, event, at)
        case ProcessEventKind.STOPPING:
            stop_request.told(job, event, at)
        case ProcessEventKind.FINISHED | ProcessEventKind.FAILED | ProcessEventKind.STOPPED:
            if node is not None:
                node.ended = event
            _maybe_end(job, at)


def _is_of_another_launch(job: Job, event: ProcessEvent, node: Node) -> bool:
    """Whether a launcher that has started nothing so far starts what others run already: they are gone, unsaid."""
    if event.attempt != job.attempt:
        return event.attempt < job.attempt
    columns, rank = job.columns, event.rank
    other = job.nodes.get(columns.launchers[rank]) if rank is not None and rank < len(columns) else None
    return other is not None and other is not node and rank in other.ranks


def _started(job: Job, event: ProcessEvent, rank: int, node: Node | None) -> None:
    job.world_size = max(job.world_size, event.world_size or 0, rank + 1)
    job.make_room(rank)
    columns = job.columns
    columns.process_R[rank], columns.expected_exit_R[rank] = ALIVE, False
    columns.pid_R[rank] = event.pid or -1
    columns.local_rank_R[rank] = -1 if event.local_rank is None else event.local_rank
    if node is not None:
        if (before := job.nodes.get(columns.launchers[rank])) is not None:
            before.ranks.discard(rank)  # whoever ran it before was replaced
        columns.launchers[rank] = event.node
        node.attempt, node.ended, node.lost = event.attempt, None, None
        node.ranks.add(rank)
        columns.hosts[rank] = node.registration.host


def _exited(job: Job, event: ProcessEvent, rank: int, at: float) -> None:
    job.make_room(rank)
    columns = job.columns
    columns.process_R[rank], columns.expected_exit_R[rank] = EXITED, event.spared
    columns.last_heard_R[rank] = at
    code = event.exit_code or 0
    if event.signal:
        code = -(signal_number(event.signal) or abs(code) or 1)
    columns.exit_code_R[rank] = code
    if event.message:
        columns.exit_messages[rank] = event.message


def _maybe_end(job: Job, at: float) -> None:
    endings = [node.ended for node in nodes.taking_part(job)]
    told = [e for e in endings if e is not None]
    if told and len(told) == len(endings):
        job.ended = ending_of(told, at)
