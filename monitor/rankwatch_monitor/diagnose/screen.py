"""What ``rankwatch diagnose`` prints: one screen about the job in the worst state, and JSON about all."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from rankwatch.cli.formatting import WIDTH, count, duration, printable, run_lines, whole_percent, wrapped
from rankwatch.contract.diagnosis import Obstacle, SeenRank
from rankwatch.contract.enums import WaitKind
from rankwatch.contract.messages import Frame
from rankwatch.contract.peers import waits_for_peers
from rankwatch_monitor.core.hang import proof
from rankwatch_monitor.core.hang.stacks import StackGroup, site_of
from rankwatch_monitor.core.hang.verdict import culprits_to_json
from rankwatch_monitor.core.plain import named, plain
from rankwatch_monitor.core.views import nccl_answers
from rankwatch_monitor.core.words.causes import place, waits_for
from rankwatch_monitor.diagnose import words
from rankwatch_monitor.diagnose.judge import Judged, Verdict

LINES: Final = 40
"""Of the whole screen."""
GROUPS: Final = 5
FRAMES: Final = 8
NATIVE_FRAMES: Final = 14
LOG_LINES: Final = 4
GPUS: Final = 2
OTHERS: Final = 4
"""Other jobs and obstacles that get a line."""
_TITLES: Final = {
    Verdict.HEALTHY: "HEALTHY",
    Verdict.TROUBLE: "IN TROUBLE",
    Verdict.SLOW: "SLOW",
    Verdict.UNKNOWN: "CANNOT TELL",
}


def lines(judged: Sequence[Judged], failed: Sequence[tuple[str, str]], obstacles: Sequence[Obstacle]) -> list[str]:
    """The screen.

    Args:
        judged: the jobs, the one to show first.
        failed: nodes that sent no report, and why.
        obstacles: what could not be read.
    """
    first, *others = judged
    below = [text for each in others[:OTHERS] for text in wrapped(f"Job {each.name}: {_TITLES[each.verdict]}.", "")]
    below += wrapped(f"{count(len(others) - OTHERS, 'more job')}.", "") if len(others) > OTHERS else []
    below += ["'--job NAME' shows another one."] if others else []
    below += [text for host, why in failed[:OTHERS] for text in wrapped(f"No report of {host}: {why}.", "")]
    below += [f"No report of {len(failed) - OTHERS} more nodes."] if len(failed) > OTHERS else []
    below += [text for each in _distinct(obstacles)[:OTHERS] for text in wrapped(words.obstacle(each), "")]
    room = max(12, LINES - len(below))
    return [printable(line) for line in (*_of_job(first, room), *below)][:LINES]


def _of_job(judged: Judged, room: int) -> list[str]:
    head = wrapped(f"{_about(judged)}.", "")
    head += wrapped(f"{_TITLES[judged.verdict]}: {judged.reason}", "")
    todo = _todo(judged)
    gpus = _gpus(judged)
    if judged.verdict is Verdict.SLOW:
        return [*head, *_rows(judged), *gpus, *todo]
    head += [] if judged.verdict is Verdict.HEALTHY else wrapped(words.ends(judged.decision.proof, _wait(judged)), "")
    answers = [] if judged.incident is None else nccl_answers.shown(judged.incident)
    head += [line for each in answers for line in wrapped(f"{each['text']}: {'; '.join(each['lines'][:2])}.", "")]
    groups = _groups(judged)
    log = _log(judged)
    stacks = _stacks(judged, room - len(head) - len(todo) - len(groups) - len(gpus) - len(log))
    return [*head, *groups, *gpus, *stacks, *log, *todo]


def _gpus(judged: Judged) -> list[str]:
    """The GPUs of the ranks that are named, and those that are unlike all others."""
    found = {each.rank: each.gpu for each in judged.ranks if each.gpu is not None}
    named = [culprit.rank for culprit in judged.culprits]
    named += [late.rank for late in judged.slowness.late] if judged.slowness is not None else []
    all_held = bool(found) and all(gpu.throttled for gpu in found.values())
    odd = [rank for rank, gpu in found.items() if gpu.xids or (gpu.throttled and not all_held)]
    shown = [rank for rank in dict.fromkeys((*named, *odd)) if rank in found][:GPUS]
    made = [""] if shown else []
    for rank in shown:
        made += wrapped(words.gpu(rank, found[rank], [gpu for peer, gpu in found.items() if peer != rank]), "  ")[:2]
    return made


def _rows(judged: Judged) -> list[str]:
    """What the latest rank does more than its peers."""
    if judged.slowness is None:
        return []
    late = judged.slowness.late[0]
    made = ["", f"  rank {late.rank:<7}peers"]
    for each in late.rows:
        made += [f"  {whole_percent(each.own):>6}    {whole_percent(each.peers):>6}   {words.row(each)}"[:WIDTH]]
    return made


def _about(judged: Judged) -> str:
    ranks = len(judged.ranks)
    of = f" of {judged.job.world_size}" if judged.job.world_size > ranks else ""
    hosts = judged.hosts[0] if len(judged.hosts) == 1 else f"{len(judged.hosts)} nodes"
    launcher = next((each.launcher for each in judged.ranks if each.launcher), "")
    started = f", started by {launcher}" if launcher else ""
    age = f" {duration(max(each.age for each in judged.ranks))} ago" if judged.ranks and launcher else ""
    number = f"{ranks}{of} ranks" if of else count(ranks, "rank")
    return f"Job {judged.name}: {number} on {hosts}{started}{age}"


def _wait(judged: Judged) -> WaitKind | None:
    seen = None if judged.incident is None else judged.incident.shown
    return None if seen is None or seen.wait is None else seen.wait.kind


def _groups(judged: Judged) -> list[str]:
    """Ranks in equal places, the smallest group first, with what they do there."""
    found = judged.stacks.groups()
    named = {culprit.rank for culprit in judged.culprits}
    found = sorted(found, key=lambda group: named.isdisjoint(group.ranks))
    made = [""] if found else []
    for group in found[:GROUPS]:
        made += wrapped(f"{words.named_ranks(group.ranks)}: {_does(judged, group)}", "  ")[:2]
    if len(found) > GROUPS:
        ranks = sum(len(group.ranks) for group in found[GROUPS:])
        made.append(f"  {count(ranks, 'more rank')} in {len(found) - GROUPS} other places")
    return made


def _does(judged: Judged, group: StackGroup) -> str:
    rank = group.ranks[0]
    seen = next((each for each in judged.ranks if each.rank == rank), None)
    where = place(site_of(proof.own_frame(rank, [group])))
    usage = None if seen is None else seen.stack.usage
    if group.waits:
        return ("waits for its peers" if len(group.ranks) == 1 else "wait for their peers") + where
    if usage is None or usage.wait is None or usage.wait.kind in (WaitKind.RUNNING, WaitKind.UNKNOWN, WaitKind.PEERS):
        return ("works" if usage is not None and usage.main_cpu > 0.1 * usage.seconds else "is") + where
    return waits_for(usage.wait) + where


def _stacks(judged: Judged, room: int) -> list[str]:
    """The culprit's stack beside that of most others, innermost first."""
    if judged.verdict is Verdict.HEALTHY or room < 4:
        return []
    groups = [group for group in judged.stacks.groups() if group.frames]
    if not groups:
        return []
    named = next((culprit.rank for culprit in judged.culprits), None)
    left = next((group for group in groups if named in group.ranks), groups[0])
    others = [group for group in groups if group is not left]
    right = max(others, key=lambda group: len(group.ranks), default=None)
    native = {each.rank: each.native for each in judged.ranks if each.native}
    number = min(NATIVE_FRAMES if native else FRAMES, room - 2)
    columns = [_column(group, native, number) for group in (left, right) if group is not None]
    width = WIDTH // len(columns) - 2
    made = ["", "Stacks, innermost first:"]
    for row in range(max(map(len, columns))):
        cells = [
            textwrap.shorten(column[row], width, placeholder="...") if row < len(column) else "" for column in columns
        ]
        made.append("  " + "  ".join(f"{cell:<{width}}" for cell in cells).rstrip())
    return made


def _column(group: StackGroup, native: Mapping[int, Sequence[Frame]], number: int) -> list[str]:
    shown = native.get(group.ranks[0], group.frames)
    frames = [_frame(frame) for frame in shown if not frame.function.startswith("0x")]  # of which no name is known
    cut = [*frames[: number - 2], f"({len(frames) - number + 2} more)"] if len(frames) > number - 1 else frames
    return [words.named_ranks(group.ranks), *cut]


def _frame(frame: Frame) -> str:
    file = frame.file.rsplit("/", 1)[-1]
    if not frame.line:  # native: without the arguments of templates and functions
        return f"{re.split('[<(]', frame.function, maxsplit=1)[0] or frame.function} ({file})"
    return f"{frame.function} ({file}:{frame.line})"


def _log(judged: Judged) -> list[str]:
    """The last lines of the output of the rank that is named, else of the first that has any."""
    if judged.verdict is Verdict.HEALTHY:
        return []
    named = {culprit.rank for culprit in judged.culprits}
    logs = [each.log for each in judged.ranks if each.log is not None and each.log.lines]
    found = next((log for log in logs if log.rank in named), next(iter(logs), None))
    if found is None:
        return []
    whose = "of several ranks" if found.shared else f"of rank {found.rank}"
    made = ["", f"Last output {whose} ({found.path} on {found.host}):"]
    return made + [f"  | {line[: WIDTH - 4]}" for line in found.lines[-LOG_LINES:]]


def _todo(judged: Judged) -> list[str]:
    if judged.advice is None:
        return []
    made = [""]
    for step in judged.advice.steps[:2]:
        made += wrapped(f"What to do: {step.text}", "")
        made += run_lines(step.command, step.host, "  ")
    for note in judged.advice.notes[:1]:
        made += wrapped(note, "  ")
    return made


def _distinct(obstacles: Sequence[Obstacle]) -> list[Obstacle]:
    """One of each kind, with the processes of all nodes."""
    pids: dict[Any, tuple[int, ...]] = {}
    for each in obstacles:
        pids[each.kind] = (*pids.get(each.kind, ()), *each.pids)
    return [Obstacle(kind, found) for kind, found in pids.items()]


# JSON -----------------------------------------------------------------------------------------------------------------


def to_json(
    judged: Sequence[Judged], failed: Sequence[tuple[str, str]], obstacles: Sequence[Obstacle]
) -> dict[str, Any]:
    """All of it for programs."""
    return {
        "version": 1,
        "jobs": [_job_to_json(each) for each in judged],
        "unanswered": [{"node": host, "why": why} for host, why in failed],
        "obstacles": [{**asdict(each), "text": words.obstacle(each)} for each in obstacles],
    }


def _job_to_json(judged: Judged) -> dict[str, Any]:
    return {
        "job": judged.name,
        "verdict": str(judged.verdict),
        "reason": judged.reason,
        "proof": str(judged.decision.proof),
        "culprits": culprits_to_json(judged.culprits),
        "why_none": None if judged.incident is None else plain(judged.incident.why_none),
        "world_size": judged.job.world_size,
        "hosts": list(judged.hosts),
        "seconds": judged.seconds,
        "attempt": judged.job.attempt,
        "slowness": None if judged.slowness is None else judged.slowness.to_json(),
        "standing": list(judged.standing),
        "unseen": list(judged.unseen),
        "exits": plain(judged.exits),
        "groups": [named(group, ("ranks", "waits", "process_state", "frames")) for group in judged.stacks.groups()],
        "ranks": [_rank_to_json(each) for each in judged.ranks],
        "advice": None if judged.advice is None else judged.advice.to_json(),
        "nccl": [] if judged.incident is None else nccl_answers.shown(judged.incident),
    }


def _rank_to_json(rank: SeenRank) -> dict[str, Any]:
    return {
        **named(rank, ("rank", "pid", "local_rank", "age", "threads", "native", "log", "gpu")),
        **named(rank.stack, ("process_state", "error", "usage")),
        "in_collective": waits_for_peers(rank.stack.frames),
    }
