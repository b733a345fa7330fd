"""The text report of a job for a terminal of 100 columns.

A list of parts, each a function from the job to its lines; empty parts are left out.
"""

from __future__ import annotations

from typing import Final

from rankwatch.cli.formatting import (
    PHASES,
    action_line,
    count,
    duration,
    fault,
    log_lines,
    members_of,
    of_it_lost,
    pace,
    percent,
    printable,
    spaced,
    verdict_row,
    when,
    wrapped,
)
from rankwatch.contract.enums import NodeRole
from rankwatch.contract.node_checks import sentence
from rankwatch_monitor.core import goodput_accounting, nodes
from rankwatch_monitor.core.hang import limits
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.views import (
    downtime,
    goodput_note,
    job_view,
    nccl_answers,
    phases,
    rank_logs,
    responses,
    verdict,
)
from rankwatch_monitor.core.views.account import account, unsaved_log
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.publish.text import scores_report

SHOWN_INCIDENTS: Final = 20
SHOWN_GROUPS: Final = 8
SHOWN_FRAMES: Final = 6
"""Innermost frames per group of stacks; the outer ones are the same on all ranks."""
SHOWN_CULPRITS: Final = 8
SHOWN_NODES: Final = 12


def text(job: Job, now: float, activity: HostActivity | None = None) -> str:
    """The report at ``now`` (unix seconds), ending in a line feed, without control characters from outside.

    ``activity``: from which hosts all jobs are heard; None: not known.
    """
    parts = (
        _headline(job, now, activity),
        _launchers(job),
        _goodput(job, now),
        _incidents(job, now),
        scores_report.stragglers(job, now),
        _limits(job),
    )
    return "\n\n".join("\n".join(map(printable, lines)) for lines in parts if lines) + "\n"


# Parts ----------------------------------------------------------------------------------------------------------------


def _headline(job: Job, now: float, activity: HostActivity | None) -> list[str]:
    shown = job_view.summary(job, now, activity)
    name = shown["name"] if shown["name"] == shown["id"] else f"{shown['name']} ({shown['id']})"
    world = count(shown["world_size"], "rank")
    facts = [
        f"{shown['ranks_reporting']} of {world} reporting" if shown["ended_at"] is None else world,
        f"attempt {shown['attempt']}",
        count(shown["restarts"], "restart") + f" of {shown['max_restarts']}",
        f"began {when(shown['started_at'])}",
    ]
    if shown["iteration"] is not None:
        speed = shown["iterations_per_second"] if shown["ended_at"] is None else None
        facts.insert(1, f"step {shown['iteration']}" + (f" at {pace(speed)}" if speed is not None else ""))
    if shown["ended_at"] is not None:
        facts.append(f"ended {when(shown['ended_at'])}")
    lines = wrapped(f"JOB {name} is {shown['state'].upper()}: {', '.join(facts)}", "")
    lines += [line for words in (shown["title"], verdict_row(shown, now)) if words for line in wrapped(words, "  ")]
    lines += wrapped("; ".join(stated), "  ") if (stated := account(job, now)) else []
    log = unsaved_log(job, now)
    return lines if log is None else [*lines, f"  {f'On {log.host}: ' if log.host else ''}{log.command}"]


def _launchers(job: Job) -> list[str]:
    """Launchers that run no ranks, and why; empty if all do."""
    waits = {role: nodes.of_role(job, role) for role in NodeRole if role is not NodeRole.ACTIVE}
    lost = {name: node for name, node in job.nodes.items() if node.lost is not None}
    if job.ended is not None or not (lost or any(waits.values())):
        return []
    figures = [f"{number} {role}" for role, number in nodes.counts(job).items() if number]
    lines = [f"NODES {', '.join(figures + ([f'{len(lost)} lost'] if lost else []))}"]
    idle: list[tuple[str, str, str]] = [
        (role, name, node.role_reason) for role, of_role in waits.items() for name, node in of_role.items()
    ]
    idle += [("lost", name, node.lost.reason) for name, node in lost.items() if node.lost]
    for what, name, reason in idle[:SHOWN_NODES]:
        lines += wrapped(f"{what} {nodes.title(job, name)}" + (f": {reason}" if reason else ""), "  ")
    more = len(idle) - SHOWN_NODES
    return lines + ([f"  and {count(more, 'more node')}"] if more > 0 else [])


def _goodput(job: Job, now: float) -> list[str]:
    spent = goodput_accounting.spent(job)
    lived = sum(spent.values())
    if not lived:
        return []
    ratio, (window, lately) = verdict.goodput(job), goodput_accounting.last_hour(job)
    if ratio is None:
        lines = [f"GOODPUT is not known yet, {duration(lived)} into the job"]
    else:
        last = f"; {percent(lately)} of the last {duration(window)}" if lately is not None and window < lived else ""
        beside = "".join(f"; {note}" for note in goodput_note.notes(job, verdict.job_state(job, now)[0], now))
        lines = wrapped(
            f"GOODPUT {percent(ratio)} of {duration(lived)} went into steps that were kept{last}{beside}", ""
        )
    used = sorted(((seconds, bucket) for bucket, seconds in spent.items() if seconds > 0), reverse=True)
    return lines + [
        f"  {spaced(bucket):<14}{duration(seconds):>14}{percent(seconds / lived):>9}" for seconds, bucket in used
    ]


def _incidents(job: Job, now: float) -> list[str]:
    if not job.incidents:
        return ["INCIDENTS none"]
    shown = list(reversed(job.incidents))[:SHOWN_INCIDENTS]
    lines = [f"INCIDENTS {len(job.incidents)}, the newest first"]
    for incident in shown:
        lines += ["", *_incident(job, incident, now)]
    earlier = len(job.incidents) - len(shown)
    return lines + (["", f"  and {earlier} before these: /api/v1/jobs/{job.id}/incidents"] if earlier else [])


def _incident(job: Job, incident: Incident, now: float) -> list[str]:
    state = f"OPEN for {duration(downtime.seconds(job, incident, now))}" if incident.open else "over"
    what = fault(incident.kind)
    lines = [f"  {when(incident.opened_at)}  {what} in attempt {incident.attempt}, {state}  [{incident.id}]"]
    lines += wrapped(incident.reason, "    ")
    for culprit in incident.culprits[:SHOWN_CULPRITS]:
        host = f" on {culprit.host}" if culprit.host else ""
        why = "" if culprit.cause == incident.culprits[0].cause else f": {culprit.reason}"
        lines += wrapped(f"culprit: rank {culprit.rank}{host}, {culprit.kind.replace('_', ' ')}{why}", "    ")
    if len(incident.culprits) > SHOWN_CULPRITS:
        lines.append(f"    and {count(len(incident.culprits) - SHOWN_CULPRITS, 'more culprit')}")
    if not incident.culprits and not incident.elective:
        lines.append("    culprit: none")
    lines += wrapped(action_line(incident.to_json()), "    ")
    if incident.outcome:
        lines += wrapped(f"outcome: {incident.outcome}", "    ")
    lines += wrapped(_took(job, incident, now), "    ")
    for each in incident.node_checks:
        lines += wrapped(f"node {each.host or each.node} fails its check: {sentence(each.result)}", "    ")
    for answer in nccl_answers.shown(incident):
        lines += wrapped(answer["text"], "    ")
        lines += [line for words in answer["lines"] for line in wrapped(words, "      ")]
    return lines + _stacks(incident) + _logs(job, incident)


def _took(job: Job, incident: Incident, now: float) -> str:
    took = phases.durations(job, incident, now).items()
    parts = [f"{duration(seconds)} {PHASES[name]}" for name, seconds in took if seconds is not None]
    if (total := downtime.total(job, incident)) is not None:
        lost = of_it_lost(downtime.of_lost_steps(job, incident), incident.steps_lost)
        parts.append(f"{duration(total)} in all{lost}")
    return f"took: {', '.join(parts)}"


def _stacks(incident: Incident) -> list[str]:
    groups, failures = job_view.stack_groups(incident), incident.stacks.failures()
    if not groups and not failures:
        return []
    lines = ["    stacks, the innermost frame first:"]
    for group in groups[:SHOWN_GROUPS]:
        lines += _group(group)
    if len(groups) > SHOWN_GROUPS:
        lines.append(f"      and {count(len(groups) - SHOWN_GROUPS, 'more group')}")
    for failure in failures[:SHOWN_GROUPS]:
        lines += wrapped(f"{members_of(failure.ranks)}: no stack, {failure.error or 'reason unknown'}", "      ")
    return lines


def _logs(job: Job, incident: Incident) -> list[str]:
    return [line for log in rank_logs.of_incident(job, incident) for line in log_lines(plain(log), "    ")]


def _group(group: responses.StackGroup) -> list[str]:
    notes = [word for word, true in (("culprit", group["is_culprit"]), ("waits for peers", group["waits"])) if true]
    lines = [f"      {members_of(group['ranks'])}: {', '.join(notes)}".rstrip()]
    lines += [
        f"        {frame['function']}  {frame['file']}:{frame['line']}" for frame in group["frames"][:SHOWN_FRAMES]
    ]
    if not group["frames"]:
        lines.append("        in different places; their frames are not kept")
    more = len(group["frames"]) - SHOWN_FRAMES
    return lines + ([f"        and {count(more, 'more frame')}"] if more > 0 else [])


def _limits(job: Job) -> list[str]:
    lines = ["LIMITS in force"]
    for row in limits.table(job.policy, job.durations):
        what = f"section {row['section']}" if row["section"] else row["what"].replace("_", " ")
        force = "none" if row["in_force"] is None else f"{row['in_force']:g} s"
        source = row["source"].replace("_", " ") if row["source"] else ""
        lines.append(f"  {what:<32}{force:>12}  {source}".rstrip())
    return lines
