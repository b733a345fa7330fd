"""What ranks printed, as their launchers answered: whom to ask for which ranks, and why something is not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, assert_never

from rankwatch.contract.rank_output import ANSWER_SECONDS, MOST_RANKS, LogAnswer, LogGap, cursor, key
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job, Node
from rankwatch_monitor.core.views import rank_logs, responses

MOST_LAUNCHERS: Final = 64
"""That are asked for ranks of an earlier attempt, whose launchers are not known."""


class Wanted(NamedTuple):
    """Which launchers are asked for which ranks."""

    by_node: dict[str, list[int]]
    gaps: dict[int, LogGap]
    """Ranks of which nobody is asked."""
    left_out: int
    """Ranks of the attempt that were not chosen."""


def wanted(job: Job, ranks: Sequence[int], attempt: int) -> Wanted:
    """Whom to ask; without ``ranks`` for those that failed, else for all as far as they fit."""
    chosen = list(dict.fromkeys(ranks))
    left_out = 0
    if not chosen:
        world = max(job.world_size, len(job.columns)) if attempt == job.attempt else _former_world(job, attempt)
        incident = _incident(job, attempt)
        failed = [each.rank for each in incident.culprits] if incident is not None else []
        chosen = list(dict.fromkeys((*failed, *range(min(world, MOST_RANKS)))))[:MOST_RANKS]
        if world > MOST_RANKS and failed:
            chosen = chosen[: len(failed)]
        left_out = max(0, world - len(chosen))
    by_node: dict[str, list[int]] = {}
    gaps: dict[int, LogGap] = {}
    if attempt != job.attempt:
        alive = [node for node in job.nodes.values() if _gap_of(node) is None]
        alive.sort(key=lambda node: not any(rank in node.former for rank in chosen))
        by_node = {node.registration.node: chosen for node in alive[:MOST_LAUNCHERS]}
        if not by_node:
            gaps = dict.fromkeys(chosen, _gap_of_all(job))
        return Wanted(by_node, gaps, left_out)
    homes = {rank: node for node in job.nodes.values() for rank in node.ranks.intersection(chosen)}
    for rank in chosen:
        node = homes.get(rank)
        gap = _gap_of_all(job) if node is None else _gap_of(node)
        if gap is not None or node is None:
            gaps[rank] = gap or LogGap.UNKNOWN
        else:
            by_node.setdefault(node.registration.node, []).append(rank)
    return Wanted(by_node, gaps, left_out)


def output(
    job: Job, attempt: int, asked: Wanted, answers: Mapping[str, LogAnswer], after: Mapping[str, int]
) -> responses.RankOutput:
    """The answers as one; ``after``: where the reader went on."""
    hosts = {name: node.registration.host for name, node in job.nodes.items()}
    logs: dict[str, responses.OutputLog] = {}
    gaps: dict[int, tuple[LogGap, str, str]] = {rank: (gap, _home(job, rank), "") for rank, gap in asked.gaps.items()}
    positions = dict(after)
    for node, answer in answers.items():
        host = hosts.get(node, "")
        for part in answer.parts:
            positions[key(part.rank, part.stream)] = part.end
            logs[key(part.rank, part.stream)] = {
                "rank": part.rank,
                "host": host,
                "stream": part.stream,
                "path": part.path,
                "lines": list(part.lines),
                "first": part.first,
                "begin": part.begin,
                "end": part.end,
                "size": part.size,
            }
        for rank, gap in answer.gaps.items():
            found = LogGap(gap) if gap in tuple(LogGap) else LogGap.UNREADABLE
            known = gaps.get(int(rank))
            if known is None or known[0] is LogGap.NOT_HERE:  # another launcher may have had it
                gaps[int(rank)] = found, host, answer.paths.get(rank, "")
    here = {log["rank"] for log in logs.values()}
    missing = {rank: gap for rank, gap in sorted(gaps.items()) if rank not in here}
    incident = _incident(job, attempt)
    recorded = [] if incident is None else [log for log in rank_logs.of_incident(job, incident) if log.lines]
    return {
        "job_id": job.id,
        "attempt": attempt,
        "newest": job.attempt,
        "ended": job.ended is not None or job.of_record,
        "logs": [logs[name] for name in sorted(logs, key=lambda name: (logs[name]["rank"], name))],
        "gaps": [_gap(job, attempt, rank, *gap) for rank, gap in missing.items()],
        "recorded": [log for log in recorded if log.rank in missing],
        "left_out": asked.left_out,
        "after": cursor(positions),
    }


def _gap(job: Job, attempt: int, rank: int, gap: LogGap, host: str, path: str) -> responses.OutputGap:
    place = rank_logs.place_of_rank(job, rank, host, attempt)
    return {
        "rank": rank,
        "host": host,
        "gap": gap.value,
        "path": path,
        "text": _words(gap, host, path, job.attempt != attempt),
        "place": place,
    }


def _words(gap: LogGap, host: str, path: str, earlier: bool) -> str:
    launcher, on = (f"the launcher on {host}", f" on {host}") if host else ("its launcher", "")
    match gap:
        case LogGap.NOT_HERE:
            return f"it did not run{on} in this attempt, or its output is no longer kept there"
        case LogGap.NO_FILE:
            return f"its output{on} goes to no file: {rank_logs.KEEP_THEM}"
        case LogGap.UNREADABLE:
            return f"its log{f' {path}' if path else ''} cannot be read{on}"
        case LogGap.UNSENT:
            return f"{launcher} was started with --no-send-logs"
        case LogGap.NO_ANSWER:
            return f"{launcher} did not answer within {ANSWER_SECONDS:g} s"
        case LogGap.LOST:
            return f"the node {host or 'it ran on'} was lost, and with it what it printed"
        case LogGap.ENDED:
            return f"{launcher} has ended, and nothing more can be fetched from it"
        case LogGap.UNKNOWN:
            return "no launcher that runs is known to have run it" if earlier else "no launcher is known to run it"
        case _:
            assert_never(gap)


def _gap_of(node: Node) -> LogGap | None:
    if node.lost is not None:
        return LogGap.LOST
    return LogGap.ENDED if node.ended is not None else None


def _gap_of_all(job: Job) -> LogGap:
    gaps: Iterable[LogGap | None] = (_gap_of(node) for node in job.nodes.values())
    found = list(gaps)
    return LogGap.ENDED if job.of_record or (found and all(each is LogGap.ENDED for each in found)) else LogGap.UNKNOWN


def _home(job: Job, rank: int) -> str:
    return next(
        (node.registration.host for node in job.nodes.values() if rank in node.ranks or rank in node.former), ""
    )


def _incident(job: Job, attempt: int) -> Incident | None:
    return next((each for each in reversed(job.incidents) if each.attempt == attempt), None)


def _former_world(job: Job, attempt: int) -> int:
    if job.previous is not None and job.attempt == attempt + 1:
        return job.previous.world_size
    return max(job.world_size, len(job.columns))
