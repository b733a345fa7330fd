"""The text report of a job, of 100 columns: what ``rankwatch status`` and ``rankwatch incidents`` show, as one text.

A list of parts, each a function to its lines; empty parts are left out.
"""

from __future__ import annotations

from typing import Final

from rankwatch.cli.formatting import duration, percent, printable, run_lines, spaced
from rankwatch.cli.incident_report import incident_report
from rankwatch.cli.status.render import goodput_lines, headline_lines, node_lines
from rankwatch.cli.terminal import Terminal
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.views import details, job_view, responses
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.publish.text import scores_report

SHOWN_INCIDENTS: Final = 20
_TERMINAL: Final = Terminal()


def text(job: Job, now: float, activity: HostActivity | None = None) -> str:
    """The report at ``now`` (unix seconds), ending in a line feed, without control characters from outside.

    ``activity``: from which hosts all jobs are heard; None: not known.
    """
    shown = details.of_job(job, now, activity)
    parts = (
        _headline(shown, now),
        node_lines(shown, _TERMINAL),
        _goodput(job_view.goodput(job, now)),
        _incidents(job, now, activity),
        scores_report.stragglers(job, now),
        _limits(shown["timeouts"]),
    )
    return "\n\n".join("\n".join(map(printable, lines)) for lines in parts if lines) + "\n"


def _headline(shown: responses.JobDetail, now: float) -> list[str]:
    lines, log = headline_lines(shown, _TERMINAL, now), shown["unsaved_log"]
    return lines if log is None else [*lines, *run_lines(log.command, log.host, "  ")]


def _goodput(shown: responses.Goodput) -> list[str]:
    lived = shown["seconds"]
    used = sorted(((seconds, bucket) for bucket, seconds in shown["buckets"].items() if seconds > 0), reverse=True)
    return goodput_lines(shown, _TERMINAL) + [
        f"  {spaced(bucket):<14}{duration(seconds):>14}{percent(seconds / lived):>9}" for seconds, bucket in used
    ]


def _incidents(job: Job, now: float, activity: HostActivity | None) -> list[str]:
    if not job.incidents:
        return ["INCIDENTS none"]
    lines = [f"INCIDENTS {len(job.incidents)}, the newest first"]
    for incident in list(reversed(job.incidents))[:SHOWN_INCIDENTS]:
        shown = plain(details.of_incident(job, incident, now, activity))
        lines += ["", *incident_report({**shown, "advice": None}, _TERMINAL, now)]  # which the headline has
    earlier = len(job.incidents) - SHOWN_INCIDENTS
    return lines + (["", f"and {earlier} before these: /api/v1/jobs/{job.id}/incidents"] if earlier > 0 else [])


def _limits(table: list[responses.Timeout]) -> list[str]:
    lines = ["LIMITS in force"]
    for row in table:
        what = f"section {row['section']}" if row["section"] else spaced(row["what"])
        force = "none" if row["in_force"] is None else f"{row['in_force']:g} s"
        lines.append(f"  {what:<32}{force:>12}  {spaced(row['source'] or '')}".rstrip())
    return lines
