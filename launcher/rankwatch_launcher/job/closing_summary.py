"""The launcher's last lines: how the job ended, what it cost, and where its record is."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rankwatch.cli.formatting import count, duration, whole_percent
from rankwatch.contract.enums import RESTARTS, ConsoleWord, VerdictKind
from rankwatch.contract.text import one_line, operands
from rankwatch.monitor_client import EXIT_WRONG, MonitorClient, MonitorError, path_of
from rankwatch_launcher.log import event, logger, note
from rankwatch_launcher.monitor.discovery import MonitorDiscovery
from rankwatch_launcher.outcome import CODE_FAILED, CODE_INTERRUPTED, FINISHED, PREEMPTED, STOPPED, Outcome

TIMEOUT: Final = 3.0
"""Seconds for each question to the monitor."""
SHOWN: Final = 5
"""Restarts with their reasons, the newest."""
_UNREAD: Final = ("the monitor did not answer at the end", "the monitor has refused this launcher")
"""Why nothing of the job could be read: nobody answers, or what answers wants another token or does not know it."""
_WORDS: Final = {FINISHED: ConsoleWord.DONE, STOPPED: ConsoleWord.STOPPED, PREEMPTED: ConsoleWord.STOPPED}


class Closing(NamedTuple):
    """The last lines of a launcher."""

    word: ConsoleWord
    what: str
    facts: tuple[str, ...]
    restarts: tuple[str, ...] = ()
    """One line each, the oldest first."""
    report: str = ""
    """The command that shows the job's record, or where that is; empty: nothing keeps one."""
    job_id: str = ""
    record: Path | None = None
    """A file that the monitor beside the launcher has written, or was not able to; None: it is kept elsewhere."""
    is_early: bool = False
    """The job ended before that monitor had started, which therefore knows nothing of it."""

    def show(self) -> None:
        """Log the lines, once the monitor that writes the record has ended."""
        if self.record is not None and not _has_job(self.record, self.job_id):
            event(self.word, self.what, *self.facts)
            if self.is_early:
                logger.warning("there is no record of this job: it ended before its monitor had started")
            else:
                logger.warning("no record of this job could be written to %s", self.record)
        else:
            event(self.word, self.what, *self.facts, look=self.report)
        for line in self.restarts:
            note(line)


def summary(outcome: Outcome, discovery: MonitorDiscovery) -> Closing:
    """The last lines, made while the monitor is still there; without an answer of it they have less."""
    job, incidents, failed = _ask(discovery, outcome.job_id)
    try:
        made = closing(outcome, job, incidents)
    except (
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        ArithmeticError,
    ):  # what answers is no monitor, or one of another version
        job, made = {}, closing(outcome, {}, ())
    if not discovery.monitor_url:
        return made
    report = _report(discovery, outcome.job_id) if job or discovery.record else _UNREAD[failed == EXIT_WRONG]
    early = discovery.record is not None and not discovery.has_started
    return made._replace(report=report, job_id=outcome.job_id, record=discovery.record, is_early=early)


def closing(outcome: Outcome, job: Mapping[str, Any], incidents: Sequence[Mapping[str, Any]]) -> Closing:
    """How the job ended, and why it was restarted; ``incidents`` has the newest first."""
    restarts = max(outcome.restarts, int(job.get("restarts") or 0))
    facts = []
    step = job.get("iteration")
    if (step := outcome.iteration if step is None else step) is not None:
        facts.append(f"step {step:,}")
    if (goodput := job.get("goodput")) is not None:
        facts += [f"goodput {whole_percent(goodput)}", *map(str, job.get("goodput_notes") or ())]
    started, ended = job.get("started_at"), job.get("ended_at")
    if started and ended and ended > started:  # a monitor that came up after the ranks has seen no duration
        facts.append(duration(ended - started))
    facts.append(count(restarts, "restart"))
    if outcome.state == STOPPED or outcome.state == PREEMPTED:
        ended_well = "all ranks have saved" if outcome.agreed else "no rank had to be killed"
        facts.insert(0, {0: ended_well, CODE_INTERRUPTED: "by Ctrl-C"}.get(outcome.code, "the ranks were killed"))
    elif outcome.why_none:  # what happened has been shown
        facts.insert(0, one_line(outcome.why_none))
    if outcome.code not in (0, CODE_FAILED, CODE_INTERRUPTED):
        facts.insert(1, f"exit code {outcome.code}")
    return Closing(
        _WORDS.get(outcome.state, ConsoleWord.FAILED), facts[0], tuple(facts[1:]), tuple(_restarts(incidents))
    )


def _restarts(incidents: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each of the newest restarts; what happened again in the same place is not said again.

    Of the incidents of one attempt the newest is shown: a crash may have been taken for a hang at first.
    """
    of_attempt: dict[Any, Mapping[str, Any]] = {}
    for incident in incidents:
        if incident["action"] in RESTARTS and incident["timeline"]["restarted"] is not None:
            of_attempt.setdefault(incident["attempt"], incident)
    shown, told = [], dict[tuple[Any, ...], Any]()
    for attempt, incident in reversed(list(of_attempt.items())[:SHOWN]):
        first = told.setdefault(_what(incident), attempt)
        what = one_line(str(incident["label"])) if first == attempt else f"the same as in attempt {first}"
        timeline = incident["timeline"]
        at = time.strftime("%H:%M:%S", time.localtime(timeline["restarted"]))
        lost = incident.get("steps_lost")
        shown.append(f"restarted at {at}: {what}" + (f", {count(lost, 'step')} lost" if lost else ""))
    return shown


def _what(incident: Mapping[str, Any]) -> tuple[Any, ...]:
    """What happened: of a crash the errors, of anything else the place, without its durations."""
    culprits = incident["culprits"]
    if incident["kind"] == VerdictKind.PROCESS_EXITED:
        return tuple((each["rank"], each["host"], json.dumps(each["cause"], sort_keys=True)) for each in culprits)
    ranks = tuple((each["rank"], each["class"]) for each in culprits)
    return incident["kind"], incident["section"], incident["furthest_iteration"], ranks, incident["action"]


def _ask(discovery: MonitorDiscovery, job_id: str) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]], int]:
    """The job and its incidents, or the exit code that a command would have instead of them."""
    if not discovery.monitor_url:
        return {}, (), 0
    try:
        client = MonitorClient(discovery.monitor_url, discovery.token or None, TIMEOUT)
        job = client.read(path_of(job_id))
        return (job if isinstance(job, dict) else {}), client.listed(f"{path_of(job_id)}/incidents", "incidents"), 0
    except MonitorError as error:  # away, or the token may not read
        return {}, (), error.code


def _report(discovery: MonitorDiscovery, job_id: str) -> str:
    job = operands(job_id)
    if discovery.record is not None:
        return f"rankwatch report {job}"
    if discovery.holds_monitor:
        return "its record is in the database of RANKWATCH_MONITOR_DATABASE"
    return f"rankwatch report {job} --monitor {discovery.monitor_url}"


def _has_job(record: Path, job_id: str) -> bool:
    """Whether a record has the job: a full disk leaves a file without it, or none."""
    try:
        with contextlib.closing(sqlite3.connect(f"{record.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return database.execute("SELECT 1 FROM jobs WHERE id = ?", (job_id,)).fetchone() is not None
    except (sqlite3.Error, ValueError):
        return False
