"""What NCCL answered about a job, in lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rankwatch.cli.formatting import count
from rankwatch.contract.nccl_ras import RasCommunicator, RasProcess, RasReport
from rankwatch_monitor.core.words.causes import launched

MOST_COMMUNICATORS: Final = 4
MOST_CLASSES: Final = 4
MOST_PROCESSES: Final = 4


def lines(report: RasReport) -> list[str]:
    """The answer: who does not answer, then the communicators whose ranks differ."""
    found = []
    if report.missing:
        one = len(report.missing) == 1
        found.append(f"{_processes(report.missing)} {'does' if one else 'do'} not answer")
    for each in report.communicators[:MOST_COMMUNICATORS]:
        found += _of_communicator(each)
    if (more := len(report.communicators) - MOST_COMMUNICATORS) > 0:
        found.append(f"and {count(more, 'more communicator')} whose ranks differ")
    if report.going_on:
        found.append(f"the ranks of {count(report.going_on, 'communicator')} differ and go on")
    if not found:
        total = count(report.total, "communicator")
        found.append(f"all processes answer, and in {total} all ranks have launched equally many operations")
    return found


def _of_communicator(each: RasCommunicator) -> list[str]:
    name = f"communicator {each.name} of {count(each.size, 'rank')}"
    found = []
    if each.missing:
        found.append(f"{name}: no answer of {_processes(each.missing)}")
    if each.progress:
        classes = [
            f"{_who(p.ranks, p.members)} launched {', '.join(launched(n, kind) for kind, n in p.counts.items())}"
            for p in each.progress[:MOST_CLASSES]
        ]
        more = len(each.progress) - MOST_CLASSES
        found.append(f"{name}: {'; '.join(classes)}" + (f"; and {more} more differ" if more > 0 else ""))
    found += [f"{name}: {_who(f.ranks, f.members)} reported '{f.what}'" for f in each.failures]
    return found


def _who(ranks: int, members: Sequence[RasProcess]) -> str:
    if members and len(members) == ranks <= MOST_PROCESSES:
        return _processes(members)
    return count(ranks, "rank")


def _processes(found: Sequence[RasProcess]) -> str:
    words = [_process(each) for each in found[:MOST_PROCESSES]]
    more = len(found) - MOST_PROCESSES
    return ", ".join(words) + (f" and {more} more" if more > 0 else "")


def _process(each: RasProcess) -> str:
    """``member 5 (process 4242 on 10.0.0.2, considered dead)``."""
    where = f"process {each.pid}" + (f" on {each.host}" if each.host else "") if each.pid >= 0 else ""
    dead = "considered dead" if each.dead else ""
    if each.member < 0:
        return (where or "a process") + (f" ({dead})" if dead else "")
    inside = ", ".join(filter(None, (where, dead)))
    return f"member {each.member}" + (f" ({inside})" if inside else "")
