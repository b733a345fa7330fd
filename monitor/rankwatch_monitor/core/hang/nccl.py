"""Whom NCCL's own answers accuse: a second witness beside our evidence, which needs nothing in the ranks.

An answer gives, for each communicator, which processes do not answer and how many operations each rank has launched.

1.  A process that does not answer keeps all others waiting.
2.  A rank is accused that has launched fewer operations than others of its communicator, or other ones than most, if
    it is not itself ahead of others in any communicator: then it waits for those. Operations are launched without
    waiting for their end, so a few ranks that are ahead of most accuse nobody.
3.  Several answers, of two nodes, accuse only whom all of them accuse that accuse anyone.

A rank is named only where the answer leaves one possibility: older versions of NCCL list only the ranks that differ
from most, and they know processes by address and pid, which are the same on several nodes of containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

import numpy as np

from rankwatch.contract.nccl_ras import RasCommunicator, RasProcess, RasProgress, RasReport
from rankwatch_monitor.core.cause import Launched, NcclBehind, NcclUnreachable
from rankwatch_monitor.core.hang.verdict import Culprit, culprit_of
from rankwatch_monitor.core.ranks import RankColumns

MOST_KINDS: Final = 3


def accused(reports: Sequence[RasReport], columns: RankColumns) -> tuple[Culprit, ...]:
    """The ranks that the answers accuse; empty: none, or they contradict each other."""
    each = [found for report in reports if (found := _by_one(report, columns))]
    if not each:
        return ()
    agreed = reduce(set.intersection, (set(found) for found in each))
    return tuple(culprit_of(columns, rank, each[-1][rank]) for rank in sorted(agreed))


def _by_one(report: RasReport, columns: RankColumns) -> dict[int, NcclUnreachable | NcclBehind]:
    places = _Places(report, columns)
    gone: dict[int, NcclUnreachable | NcclBehind] = {}
    named = [(places.rank_of(process), process) for process in report.missing]
    for communicator in report.communicators:
        named += [(places.rank_of(process, communicator), process) for process in communicator.missing]
    for rank, process in named:
        if rank >= 0 and (rank not in gone or process.dead):
            gone[rank] = NcclUnreachable(process.dead)
    if named:  # the counts of the others follow from it
        return gone if 2 * len(gone) <= len(columns) else {}
    late, waiting = dict[int, NcclUnreachable | NcclBehind](), set[int]()
    unlisted: list[tuple[RasCommunicator, set[int]]] = []
    for communicator in report.communicators:
        ahead, behind = _compared(communicator.progress)
        waiting.update(*(places.ranks_of(each.members, communicator) for each in ahead))
        for each, cause in behind:
            for rank in places.ranks_of(each.members, communicator):
                late.setdefault(rank, replace(cause, communicator=communicator.name))
        if any(len(each.members) < each.ranks for each in ahead):
            listed = (places.ranks_of(each.members, communicator) for each in communicator.progress)
            unlisted.append((communicator, set().union(*listed)))
    # One that is not listed in a communicator may wait there.
    return {
        rank: cause
        for rank, cause in late.items()
        if rank not in waiting and all(rank in known for _, known in unlisted)
    }


def _compared(progress: Sequence[RasProgress]) -> tuple[list[RasProgress], list[tuple[RasProgress, NcclBehind]]]:
    """The ranks of a communicator that are ahead of others, and those that the others wait for."""
    if len(progress) < 2:
        return [], []
    most, size = progress[0], sum(each.ranks for each in progress)
    least = min(each.launched for each in progress)
    ahead = [each for each in progress if each.launched > least]
    last = [each for each in progress if each.launched == least]
    behind: list[tuple[RasProgress, NcclBehind]] = []
    if ahead and 2 * sum(each.ranks for each in last) <= size:
        usual = max(ahead, key=lambda each: each.ranks)
        behind = [(each, _cause(each, usual)) for each in last]
    elif not ahead and 2 * most.ranks > size:
        behind = [(each, _cause(each, most)) for each in progress[1:]]
    return ahead, behind


def _cause(own: RasProgress, others: RasProgress) -> NcclBehind:
    differing = [
        Launched(kind, count, others.counts.get(kind, 0))
        for kind, count in own.counts.items()
        if count != others.counts.get(kind, 0)
    ]
    return NcclBehind("", tuple(differing[:MOST_KINDS]), others.ranks)


class _Places:
    """Which rank of the job a process of an answer is."""

    def __init__(self, report: RasReport, columns: RankColumns) -> None:
        self._columns = columns
        self._complete = bool((columns.pid_R >= 0).all())
        self._hosts = _hosts(report, columns)

    def ranks_of(self, processes: Iterable[RasProcess], communicator: RasCommunicator) -> set[int]:
        """Those that are known."""
        return {rank for process in processes if (rank := self.rank_of(process, communicator)) >= 0}

    def rank_of(self, process: RasProcess, communicator: RasCommunicator | None = None) -> int:
        """-1: not known."""
        columns = self._columns
        if communicator is not None and communicator.size == len(columns) and 0 <= process.member < len(columns):
            pid = int(columns.pid_R[process.member])  # torch numbers the members of such a group as the ranks
            return process.member if process.pid < 0 or pid in (-1, process.pid) else -1
        if process.pid < 0:
            return -1
        found = np.flatnonzero(columns.pid_R == process.pid).tolist()
        if len(found) > 1 or not self._complete:
            host = self._hosts.get(process.host, process.host)
            found = [rank for rank in found if columns.hosts[rank] == host]
        return found[0] if len(found) == 1 else -1


def _hosts(report: RasReport, columns: RankColumns) -> dict[str, str]:
    """The host of each address that is known to be one."""
    known = set(columns.hosts)
    if len(known) == 1:
        (only,) = known
        addresses = {process.host for process in _processes(report)}
        return dict.fromkeys(addresses, only)
    pids: dict[str, set[int]] = {}
    for process in _processes(report):
        pids.setdefault(process.host, set()).add(process.pid)
    of_host: dict[str, set[int]] = {}
    for host, pid in zip(columns.hosts, columns.pid_R.tolist(), strict=True):
        of_host.setdefault(host, set()).add(pid)
    found: dict[str, str] = {}
    for address, held in pids.items():
        possible = [host for host, own in of_host.items() if held <= own]
        if len(possible) == 1:
            found[address] = possible[0]
    return found


def _processes(report: RasReport) -> Iterable[RasProcess]:
    yield from report.missing
    for communicator in report.communicators:
        yield from communicator.missing
        for progress in communicator.progress:
            yield from progress.members
