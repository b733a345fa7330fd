"""``rankwatch jobs``: the jobs of this host, living and past, from the records that their monitors keep."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rankwatch.cli.common import print_text
from rankwatch.cli.formatting import percent, printable, size, when
from rankwatch.cli.status.render import state_style
from rankwatch.cli.terminal import Cell, Column, Terminal, terminal_of
from rankwatch.contract import access, records
from rankwatch.contract.records import Record
from rankwatch.monitor_client import MonitorClient, MonitorError
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.store import archive

UNREADABLE: Final = "unreadable"
_COLUMNS: Final = (
    Column("JOB"),
    Column("NAME", drop=3),
    Column("STATE"),
    Column("STEP", right=True, drop=5),
    Column("RANKS", right=True, drop=4),
    Column("RESTARTS", right=True, drop=6),
    Column("GOODPUT", right=True, drop=7),
    Column("LAST REPORT"),
    Column("RECORD", right=True, drop=8),
)


@dataclass(frozen=True, slots=True)
class HostJob:
    """One job of this host."""

    id: str
    name: str = ""
    state: str = UNREADABLE
    reason: str = ""
    iteration: int | None = None
    world_size: int = 0
    restarts: int = 0
    goodput: float | None = None
    last_report: float = 0.0
    """Unix time."""
    monitor: str | None = None
    """Address of its living monitor."""
    record: str | None = None
    """Path of its record."""
    bytes: int | None = None


_OF_SUMMARY: Final = ("id", "name", "state", "reason", "iteration", "world_size", "restarts", "goodput")


def jobs(argv: Sequence[str]) -> int:
    """List the living and past jobs of this host, with their records."""
    arguments = parser().parse_args(argv)
    found = of_host(os.environ)
    if arguments.json:
        print_text(json.dumps({"jobs": [asdict(each) for each in found]}, indent=2) + "\n")
    else:
        print_text("".join(f"{line}\n" for line in lines(found, terminal_of(sys.stdout), os.environ)))
    return 0


def of_host(variables: Mapping[str, str]) -> list[HostJob]:
    """The jobs of this user on this host, the most recently active first."""
    living = {each.job_id: each for each in access.running()}
    found = [job for record in records.found(variables) for job in _of_record(record, living)]
    elsewhere = living.keys() - {job.id for job in found}  # monitors with another database
    found += [_of_monitor(living[missing]) for missing in elsewhere]
    return sorted(found, key=lambda job: (job.monitor is not None, job.last_report), reverse=True)


def _of_record(record: Record, living: Mapping[str, access.MonitorAccess]) -> list[HostJob]:
    try:
        stored = archive.jobs(record.path)
    except ValueError as error:
        return [
            HostJob(
                record.path.stem,
                reason=str(error),
                last_report=record.written,
                record=str(record.path),
                bytes=record.size,
            )
        ]
    now = time.time()
    return [
        _host_job(
            job_view.summary(job, now),
            job.last_heard,
            monitor=living[job.id].url if job.id in living else None,
            record=record.path,
            size_of_record=record.size,
        )
        for job in stored
    ]


def _of_monitor(own: access.MonitorAccess) -> HostJob:
    try:
        for each in MonitorClient(own.url, own.token, 5.0).listed("/jobs", "jobs"):
            if each["id"] == own.job_id:
                return _host_job(each, time.time(), monitor=own.url)
    except (MonitorError, KeyError) as error:
        return HostJob(own.job_id, reason=str(error), monitor=own.url)
    return HostJob(own.job_id, state="starting", monitor=own.url, last_report=time.time())


def _host_job(
    summary: Mapping[str, Any],
    last_report: float,
    *,
    monitor: str | None,
    record: Path | None = None,
    size_of_record: int | None = None,
) -> HostJob:
    return HostJob(
        **{name: summary[name] for name in _OF_SUMMARY},
        last_report=last_report,
        monitor=monitor,
        record=None if record is None else str(record),
        bytes=size_of_record,
    )


def lines(found: Sequence[HostJob], terminal: Terminal, variables: Mapping[str, str]) -> list[str]:
    """The jobs as a table, and what to do with them."""
    folder = records.folders(variables)[0]
    if not found:
        return [f"no job has run here yet: 'rankwatch run' keeps a record of each in {folder}"]
    table = terminal.table(_COLUMNS, [_row(each) for each in found])
    return [*table, "", *terminal.wrapped("'rankwatch report JOB' and 'rankwatch open JOB' show one")]


def _row(job: HostJob) -> list[Cell]:
    name = printable(job.name)
    return [
        Cell(printable(job.id), "bold"),
        Cell("" if job.name == job.id else name),
        Cell(job.state, state_style(job.state)),
        Cell("" if job.iteration is None else str(job.iteration)),
        Cell(str(job.world_size) if job.world_size else ""),
        Cell(str(job.restarts)),
        Cell("" if job.goodput is None else percent(job.goodput)),
        Cell("now" if job.monitor else when(job.last_report)),
        Cell("" if job.bytes is None else size(job.bytes)),
    ]


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    made = argparse.ArgumentParser(
        prog="rankwatch jobs",
        description="Lists the jobs that your 'rankwatch run' has watched on this host, those that run and those that "
        "have ended. Jobs of a monitor that is shared by several hosts are listed by 'rankwatch status --monitor URL'.",
    )
    made.add_argument("--json", action="store_true", help="print JSON, with the path of each record")
    return made
