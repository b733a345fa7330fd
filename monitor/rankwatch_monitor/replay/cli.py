"""``rankwatch replay``: plays a recording or an operation table, and prints what was decided and when.

A recording shows everything the monitor decided, or would decide under another policy. An operation table is evaluated
for stragglers only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rankwatch.cli.formatting import first_of, gpu_time
from rankwatch.cli.parser import Parser
from rankwatch.cli.terminal import Progress
from rankwatch.contract.messages import Directive
from rankwatch.contract.policy import Policy, changes_of
from rankwatch.contract.text import one_line
from rankwatch_monitor.core.effects import Changed, Effect, Issue, Slowed
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.replay.player import NO_HANG_DETECTION, RecordingPlayer, play_windows
from rankwatch_monitor.replay.recording import Entry, Recording, RecordingError
from rankwatch_monitor.replay.summary import Summary, of_recording, summarize, worst
from rankwatch_monitor.replay.traces import windows as optable
from rankwatch_monitor.replay.traces.kineto import is_trace
from rankwatch_monitor.replay.traces.read import TableError, is_table


@dataclass(slots=True)
class JobLog:
    """What was decided about one job, in order of time."""

    job: Job
    incidents: dict[str, Incident] = field(default_factory=dict)
    messages: list[tuple[float, str]] = field(default_factory=list)
    directives: list[tuple[float, Directive]] = field(default_factory=list)

    def take(self, now: float, effect: Effect) -> None:
        """Record one effect."""
        if isinstance(effect, Changed):
            self.incidents[effect.incident.id] = effect.incident
            if effect.message:
                self.messages.append((now, effect.message))
        elif isinstance(effect, Slowed):
            if effect.message:
                self.messages.append((now, effect.message))
        elif isinstance(effect, Issue):
            self.directives.append((now, effect.directive))

    def to_json(self) -> dict[str, Any]:
        """As JSON; times are unix seconds."""
        return {
            "id": self.job.id,
            "name": self.job.name,
            "world_size": self.job.world_size,
            "attempt": self.job.attempt,
            "restarts": self.job.restarts,
            **of_recording(self.job).to_json(),
            "policy": self.job.policy.to_json(),
            "incidents": [{**incident.to_json(), "latency": latency(incident)} for incident in self.incidents.values()],
            "said": [{"at": at, "text": text} for at, text in self.messages],
            "directives": [
                {"at": at, "id": d.id, "kind": str(d.kind), "attempt": d.attempt, "reason": d.reason}
                for at, d in self.directives
            ],
        }


def latency(incident: Incident) -> float | None:
    """Seconds from the start of the problem to the incident."""
    since = incident.timeline.since
    return None if since is None else max(0.0, incident.opened_at - since)


def replay(argv: Sequence[str]) -> int:
    """Play a recording of the monitor, or an operation table: what was decided, or would be under another policy.

    The exit code is 0, and 2 when the file cannot be read or the policy is invalid.
    """
    asked = _parser().parse_args(argv)
    try:
        if is_trace(Path(asked.file)) or is_table(Path(asked.file)):
            return _table(asked)
        if asked.time_unit is not None:
            return _fail("--time-unit is for operation tables, and this is a recording")
    except (TableError, ValueError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"cannot read {asked.file}: {error.strerror or error}")
    return _recording(asked)


def _recording(asked: argparse.Namespace) -> int:
    logs: dict[str, JobLog] = {}

    def record(job: Job, now: float, effect: Effect) -> None:
        logs.setdefault(job.id, JobLog(job)).take(now, effect)

    recording = Recording(asked.file)
    try:
        played = RecordingPlayer(record, policy=policy_changes(asked.policy), only=asked.job)
        played.play(_with_progress(recording))
    except (RecordingError, ValueError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"cannot read {asked.file}: {error.strerror or error}")
    if asked.job is not None and asked.job not in played.jobs:
        return _fail(f"{asked.file} holds no job {asked.job!r}")
    job_logs = [logs.get(name) or JobLog(play.job) for name, play in played.jobs.items()]
    if asked.json:
        counts = {"events": played.events, "lost": played.lost, "truncated": recording.truncated}
        span = {"from": _number(played.first), "to": _number(played.last)}
        judged = worst([of_recording(job_log.job) for job_log in job_logs]).to_json()
        jobs = [job_log.to_json() for job_log in job_logs]
        print_json({"file": str(recording.path), **span, **counts, **judged, "jobs": jobs})
        return 0
    lines = _heading(recording, played)
    for job_log in job_logs:
        lines += ["", *_job_lines(job_log, played.first)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _table(asked: argparse.Namespace) -> int:
    """Evaluate an operation table as one job, each step as a window."""
    if asked.job is not None:
        raise ValueError("--job selects a job of a recording; an operation table has only one")
    changes = policy_changes(asked.policy)
    table = optable.read(asked.file, asked.time_unit)
    job = Job(table.path.name, optable.START, policy=Policy().changed({**NO_HANG_DETECTION, **changes}))
    for _ in play_windows(optable.windows(table), job):
        pass
    judged = summarize(job.performance)
    held = {"operations": len(table), "ranks": len(table.ranks), "steps": len(table.steps)}
    if asked.json:
        row = {"id": job.id, "name": job.name, "world_size": job.world_size, **judged.to_json()}
        known = {**held, "notes": list(table.notes), "certainty": round(table.certainty, 2)}
        shown = {"file": str(table.path), "table": known, **judged.to_json()}
        print_json({**shown, "jobs": [{**row, "policy": job.policy.to_json()}]})
        return 0
    counts = f"{held['operations']} operations of {held['ranks']} ranks in {held['steps']} steps"
    lines = [f"{table.path}: {counts}", *(f"  {note}" for note in table.notes), "", *verdict_lines(judged)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def verdict_lines(judged: Summary) -> list[str]:
    """The verdict on slow steps in a few lines, the costliest straggler first."""
    if not judged.windows:
        return [f"  {judged.reason or 'no windows of steps: nothing is known of stragglers'}"]
    cost = f", {gpu_time(3600.0 * judged.cost_gpu_hours)} lost to stragglers" if judged.cost_gpu_hours else ""
    lines = [f"  verdict over {sum(judged.windows.values())} windows: {judged.verdict}{cost}"]
    if not judged.stragglers:
        return lines + ([f"  {judged.reason}"] if judged.reason else [])
    lines.append(f"  {'rank':>6}  {'host':16}  {'score':>6}  {'lateness':>10}  {'cause':13}  reason")
    for each in judged.stragglers:
        score = "" if each.score is None else f"{each.score:.2f}"
        late = "" if each.lateness is None else f"{1000 * each.lateness:.1f} ms"
        lines.append(f"  {each.rank:>6}  {each.host:16}  {score:>6}  {late:>10}  {each.cause:13}  {each.reason}")
    return lines


def _with_progress(recording: Recording) -> Iterator[Entry]:
    """Yield the entries, and show the progress on a terminal."""
    with Progress("replaying", recording.path.stat().st_size) as progress:
        for number, entry in enumerate(recording, 1):
            yield entry
            if not number & 0xFF:
                progress.at(recording.bytes_read, f"{number:,} events")


def _parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="rankwatch replay",
        description="Play a recording (rankwatch monitor --record FILE), an operation table (CSV or Parquet) or traces "
        "of PyTorch's profiler through the monitor's core and print what is decided. Nothing is delivered.",
    )
    made.add_argument(
        "file", metavar="FILE", help="a recording (also .gz, .zst); .csv, .csv.gz, .parquet; a folder of Kineto traces"
    )
    made.add_argument("--job", metavar="ID", help="recording: this job only")
    made.add_argument(
        "--time-unit",
        choices=tuple(optable.UNITS),
        help="table: the unit of start_ts and duration; default: derived from their magnitude",
    )
    add_common_options(made)
    return made


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Options of a command that plays events through the core."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--policy",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="override a policy setting (section_timeouts=step=10,checkpointing=600); may be repeated",
    )


def policy_changes(given: Sequence[str]) -> dict[str, Any]:
    """Parse and validate ``NAME=VALUE`` policy overrides.

    Raises:
        ValueError: a name is not a setting, or its value is invalid.
    """
    changes = changes_of(given)
    Policy().changed(changes)
    return changes


def _fail(message: str) -> int:
    """Print an error and return its exit code."""
    sys.stderr.write(f"rankwatch replay: {one_line(message)}\n")
    return 2


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _number(value: float) -> float | None:
    return None if value != value else value


def _heading(recording: Recording, played: RecordingPlayer) -> list[str]:
    if played.first != played.first:
        return [f"{recording.path}: nothing was recorded"]
    began = datetime.fromtimestamp(played.first, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lines = [f"{recording.path}: {played.events} events in {played.last - played.first:.1f} s from {began}"]
    if played.lost:
        lines.append(f"{played.lost} events could not be recorded: what is decided below may differ from what was")
    if recording.truncated:
        lines.append("the last line is cut off, as after a monitor that was killed; it is left out")
    return lines


def _job_lines(job_log: JobLog, first: float) -> list[str]:
    job = job_log.job
    lines = [f"job {job.id}: {job.world_size} ranks, attempt {job.attempt}"]
    dated = [(at, text) for at, text in job_log.messages]
    dated += [(at, f"directive {d.id}: {d.kind} (not delivered)") for at, d in job_log.directives]
    lines += [f"  {at - first:10.1f} s  {text}" for at, text in sorted(dated, key=lambda each: each[0])]
    lines += ["", *incident_lines(list(job_log.incidents.values()), first)]
    judged = of_recording(job)
    return [*lines, *(["", *verdict_lines(judged)] if judged.windows or judged.reason else [])]


def incident_lines(incidents: Sequence[Incident], first: float) -> list[str]:
    """One line for each incident, with times since ``first``."""
    if not incidents:
        return ["  no incident"]
    lines = [f"  {'opened':>10}  {'latency':>8}  {'kind':22}  {'culprits':24}  outcome"]
    for incident in incidents:
        named = first_of([f"{c.rank} ({c.kind})" for c in incident.culprits], 3) or "none"
        took = latency(incident)
        lines.append(
            f"  {incident.opened_at - first:8.1f} s  {'' if took is None else f'{took:6.1f} s':>8}  {incident.kind:22}"
            f"  {named:24}  {'' if incident.confirmed else 'suspicion: '}{incident.outcome or incident.phase}"
        )
    return lines
