"""The logs of ranks that failed: the last lines that an incident holds of each, and where the whole of it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rankwatch.cli.formatting import capital
from rankwatch.contract.enums import CulpritClass
from rankwatch.contract.messages import KEPT_OUTPUT, LOGGED_RANKS, LOGS_UNSENT, RankLog
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import host_commands
from rankwatch_monitor.core.views.responses import Place, ShownLog

KEEP_THEM: Final = "launch with --log-dir DIR --tee 3 to keep the output of each rank in a file"
UNSENT: Final = "its launcher was started with --no-send-logs"
ANY_RUN: Final = "The newest run in this folder: check that it is this job's. torch counts its attempts from 0."
SHOWS_WHERE: Final = "the command shows where it is"
NEWEST_ATTEMPT: Final = "The newest attempt in the folder of this launch: torch counts its attempts from 0."
_LOG: Final = re.compile(r"(?P<run>.+)/attempt_(?P<attempt>\d+)/\d+/std(?:err|out)\.log")
"""A rank's log in torch's folders."""
_MARKED: Final = re.compile(r"\[rank(?P<rank>\d+)\]: ?(?P<line>.*)")
"""A line of a traceback, as torch marks it."""


def of_incident(job: Job, incident: Incident) -> list[ShownLog]:
    """The logs of the ranks that failed, those of culprits first."""
    dead = (c.rank for c in incident.culprits if c.kind is CulpritClass.DEAD)
    ranks = list(dict.fromkeys((*dead, *(log.rank for log in incident.logs))))[:LOGGED_RANKS]
    hosts = {c.rank: c.host for c in incident.culprits}
    shown: list[ShownLog] = []
    for rank in ranks:
        received = [each for log in incident.logs if log.rank == rank for each in _parted(log, incident.attempt)]
        shown += received or [_missing(job, rank, hosts.get(rank, ""))]
    return shown


def _parted(log: RankLog, attempt: int) -> list[ShownLog]:
    """A log as it is shown; of one that ranks share the lines of the rank, then those of the first other one there."""
    whole = _received(log, attempt)
    by_rank: dict[int, list[str]] = {}
    for line in log.lines if log.shared else ():
        if match := _MARKED.match(line):
            by_rank.setdefault(int(match["rank"]), []).append(match["line"])
    others = [rank for rank in by_rank if rank != log.rank][:1]
    ranks = [log.rank, *others] if log.rank in by_rank else []
    parts = [
        replace(
            whole,
            rank=rank,
            lines=tuple(by_rank[rank]),
            title=f"Log of rank {rank}",
            text="Its last lines in the log of all ranks there.",
        )
        for rank in ranks
    ]
    return parts or [whole]


def place_of(job: Job, rank: int, host: str) -> Place:
    """Where the log of a rank is: the file whose end its newest crash sent, else where its launcher logs."""
    for incident in reversed(job.incidents):
        if (log := next((log for log in incident.logs if log.rank == rank and log.host == host), None)) is not None:
            return _received(log, incident.attempt).place
    return place_of_rank(job, rank, host)


def place_of_rank(job: Job, rank: int, host: str, attempt: int = 0) -> Place:
    """Where the launcher on a host keeps the log of a rank; ``attempt``: 0: the newest."""
    facts = _facts(job, host)
    if _kept(facts):
        return Place(host_commands.tail_kept(facts[KEPT_OUTPUT], attempt or job.attempt, rank), host)
    return place_on(job, host, int(job.columns.local_rank_R[rank]) if rank < len(job.columns) else -1)


def place_on(job: Job, host: str, local_rank: int = -1) -> Place:
    """Where the launcher on a host keeps the logs of its ranks; -1: of all of them."""
    facts = _facts(job, host)
    if _kept(facts):
        return Place(host_commands.tail_kept(facts[KEPT_OUTPUT], job.attempt), host)
    run, note = _run_folder(job, host, facts.get("run_logs", "")) if "rank_logs" in facts else ("", "")
    if command := host_commands.tail(facts, local_rank, run):
        return Place(command, host, note, note == ANY_RUN)
    return Place(host_commands.log(facts))


def of_launcher(job: Job, host: str) -> Place:
    """Where the launcher on a host logs; ``note``: a clause. Empty: no launcher is known there."""
    launcher = next((node.registration for node in job.nodes.values() if node.registration.host == host), None)
    if launcher is None:
        return Place()
    if "log" in launcher.facts:
        return Place(host_commands.tail_of(launcher.facts["log"]), host)
    if command := host_commands.log(launcher.facts):
        return Place(command, note=SHOWS_WHERE if "scontrol" in command else "")
    return Place(host_commands.where_logged(launcher.launcher_pid), host, SHOWS_WHERE)


def _run_folder(job: Job, host: str, reported: str) -> tuple[str, str]:
    """torch's folder for the job on a host, and what it calls the attempt there, by the newest log that is known in it.

    ``reported``: the folder as the launcher there reported it; empty: it did not.
    """
    for incident in reversed(job.incidents):
        for log in incident.logs:
            match = _LOG.fullmatch(log.path)
            # Another folder is that of a launch before.
            if match and log.host == host and not log.shared and reported in ("", match["run"]):
                folder = int(match["attempt"]) + job.attempt - incident.attempt
                return match["run"], _in_folder(job.attempt, folder)
    return (reported, NEWEST_ATTEMPT) if reported else ("", ANY_RUN)


def _in_folder(attempt: int, folder: int) -> str:
    return f"Attempt {attempt} is in folder attempt_{folder}: torch counts from 0."


def _received(log: RankLog, attempt: int) -> ShownLog:
    number = "the last line" if len(log.lines) == 1 else f"the last {len(log.lines)} lines"
    what = number
    if not log.lines:
        what = "it is empty or cannot be read"
    elif log.shared:
        what = f"{number}, of any rank there: rank {log.rank} has no log of its own"
    title = "Log of all ranks" if log.shared else f"Log of rank {log.rank}"
    text = f"{capital(what)}."
    match = _LOG.fullmatch(log.path)
    place = Place(
        host_commands.tail_of(log.path), log.host, _in_folder(attempt, int(match["attempt"])) if match else ""
    )
    return ShownLog(log.rank, log.host, log.stream, log.path, log.lines, title, text, place)


def _missing(job: Job, rank: int, host: str) -> ShownLog:
    place = place_of(job, rank, host)
    facts = _facts(job, host)
    why = UNSENT if LOGS_UNSENT in facts else "" if place.command else KEEP_THEM
    text = "No line of its output was received" + (f": {why}." if why else ".")
    return ShownLog(rank, host, "", "", (), f"Log of rank {rank}", text, place)


def _kept(facts: Mapping[str, str]) -> bool:
    """Whether the launcher itself keeps what ranks print, since torch does not."""
    return KEPT_OUTPUT in facts and "rank_logs" not in facts


def _facts(job: Job, host: str) -> Mapping[str, str]:
    """Of the launcher on a host."""
    return next((node.registration.facts for node in job.nodes.values() if node.registration.host == host), {})
