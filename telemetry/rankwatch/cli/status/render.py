"""Formats ``rankwatch status``: the table of all jobs, and one job in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankwatch.cli.formatting import (
    action_line,
    count,
    duration,
    fault,
    finding,
    gpu_time,
    pace,
    percent,
    printable,
    ranks,
    run_lines,
    spaced,
    verdict_row,
    when,
)
from rankwatch.cli.status.query import JobSnapshot, Json
from rankwatch.cli.terminal import STATE_STYLES, Cell, Column, Terminal
from rankwatch.contract.text import operands

SHOWN: Final = 8
"""Maximum culprits, stragglers and nodes listed."""
_REASON_LINES: Final = 2
"""Maximum lines of a job's reason in the table of all jobs."""

_FLEET: Final = (
    Column("JOB", least=12, middle=True),
    Column("NAME", drop=7, least=8),
    Column("STATE"),
    Column("STEP", right=True),
    Column("PACE", right=True, drop=2),
    Column("RANKS", right=True, drop=1),
    Column("RESTARTS", right=True, drop=4),
    Column("GOODPUT", right=True),
    Column("VERDICT", drop=3),
    Column("AGE", right=True, drop=6),
)


def fleet_lines(jobs: Sequence[Json], terminal: Terminal, now: float) -> list[str]:
    """All jobs as a table, each with its reason below it, and what a person should do."""
    if not jobs:
        return ["no job yet: 'rankwatch run' starts one"]
    table = terminal.table(_FLEET, [_row(job, now) for job in jobs])
    lines = table[:1]
    for job, line in zip(jobs, table[1:], strict=True):
        lines.append(line)
        if why := _why(job):
            lines += terminal.wrapped(why, "  ", reason_style(job), most=_REASON_LINES)
        lines += next_line(job, terminal)
    return lines


def job_lines(snapshot: JobSnapshot, terminal: Terminal, now: float) -> list[str]:
    """One job: state and reason, figures, ranks, incident, stragglers, logged values, goodput, nodes."""
    parts = (
        headline_lines(snapshot.job, terminal, now),
        _ranks(snapshot, terminal),
        _incident(snapshot, terminal, now),
        _stragglers(snapshot, terminal, now),
        _not_finite(snapshot.not_finite, terminal),
        _goodput(snapshot.goodput, terminal),
        node_lines(snapshot.job, terminal),
    )
    lines: list[str] = []
    for part in parts:
        lines += ([""] if lines and part else []) + part
    return lines


def state_style(word: str) -> str:
    """Style of a state or a verdict."""
    return STATE_STYLES.get(word, "warning")


def reason_style(job: Json) -> str:
    """Style of a job's reason: that of its state, or a warning for a running job."""
    if "monitor" in job:
        return ""
    if job["state"] in ("finished", "stopped", "starting"):
        return ""
    return "warning" if job["state"] == "running" else state_style(job["state"])


def incident_lines(incident: Json, terminal: Terminal, *, titled: bool = False) -> list[str]:
    """Reason, culprits, action and outcome of an incident; ``titled``: its title is above, and the rest follows."""
    indent = "  "
    words = incident["detail"] if titled else incident["reason"]
    lines = terminal.wrapped(words, indent) if words else []
    for culprit in incident["culprits"][:SHOWN]:
        host = f" on {culprit['host']}" if culprit["host"] else ""
        why = "" if culprit["cause"] == incident["culprits"][0]["cause"] else f": {culprit['reason']}"
        lines += terminal.wrapped(
            f"culprit: rank {culprit['rank']}{host}, {spaced(culprit['class'])}{why}", indent, "bold"
        )
    more = len(incident["culprits"]) - SHOWN
    if more > 0:
        lines.append(f"{indent}and {count(more, 'more culprit')}")
    if not incident["culprits"] and incident["kind"] != "ordered":
        lines.append(f"{indent}culprit: none")
    if place := incident.get("of_place"):
        lines += terminal.wrapped(place["text"], indent, "bold")
    lines += terminal.wrapped(action_line(incident), indent)
    if incident["outcome"] and not (titled and incident["ended"] == "job_ended"):
        lines += terminal.wrapped(f"outcome: {incident['outcome']}", indent)
    return lines


def details_line(incident: Json, terminal: Terminal) -> list[str]:
    """The command that shows the stacks and logs of an incident."""
    short = incident["id"].removeprefix(f"{incident['job_id']}-")
    command = f"rankwatch incidents {operands(incident['job_id'], short)}"
    return terminal.wrapped(f"stacks and logs: {command}", "  ", "dim")


# The table of all jobs ------------------------------------------------------------------------------------------------


def _row(job: Json, now: float) -> list[Cell]:
    speed, elsewhere, over = _pace(job), "monitor" in job, job["ended_at"] is not None
    lived = max(0.0, (job["ended_at"] or now) - job["started_at"])
    return [
        Cell(job["id"], "bold"),
        Cell("" if job["name"] == job["id"] else job["name"]),
        Cell(job["state"], state_style(job["state"])),
        Cell("" if job["iteration"] is None else str(job["iteration"])),
        Cell(speed),
        Cell(str(job["world_size"]) if elsewhere or over else f"{job['ranks_reporting']}/{job['world_size']}"),
        Cell("" if elsewhere else f"{job['restarts']}/{job['max_restarts']}", "warning" if job["restarts"] else ""),
        Cell("" if (kept := job["goodput"]) is None else percent(kept)),
        _verdict(job),
        Cell(duration(lived)),
    ]


def _why(job: Json) -> str:
    """What is wrong with it; of a job that another monitor watches, which one."""
    return str(job["reason"] if "monitor" in job else job["title"] if job["headline"] else "")


def next_line(job: Json, terminal: Terminal) -> list[str]:
    """What a person should do, in a few words, or what happens by itself; nothing: no line."""
    if not (advice := job.get("advice")):
        return []
    return terminal.wrapped(*_worded(advice, advice["text"]))


def _worded(advice: Json, text: str) -> tuple[str, str, str]:
    """Text, indent and style: what a person should do stands out."""
    return (text, "  ", "") if advice["waits"] else (f"next: {text}", "  ", "bold")


def advice_lines(job: Json, terminal: Terminal) -> list[str]:
    """The same with all steps, each with its command on a line to copy; nothing: no line."""
    if not (advice := job.get("advice")):
        return []
    steps, waits = advice["steps"], advice["waits"]
    lines = next_line(job, terminal) if waits else []
    for number, step in enumerate(steps, 1):
        lead = "" if waits else "next: " if len(steps) == 1 else f"next, {number}: "
        lines += terminal.wrapped(f"{lead}{step['text']}", "  ", "" if waits else "bold")
        lines += run_lines(step["command"], step["host"], "    ")
        lines += terminal.wrapped(step["note"], "    ", "dim") if step["note"] else []
    for each in (*advice["alternatives"], *advice["notes"]):
        lines += terminal.wrapped(each, "  ")
    return lines


def _pace(job: Json) -> str:
    """Speed of a job that has not ended; 0 while it makes no progress, empty while unknown, as of a lost job."""
    speed = job["iterations_per_second"]
    return "" if speed is None or job["state"] in ("finished", "failed", "stopped", "lost") else pace(speed)


def _verdict(job: Json) -> Cell:
    """Verdict on the speed; "healthy" is omitted unless the job runs without an incident."""
    if job["verdict"] == "healthy" and (job["state"] != "running" or job["open_incidents"]):
        return Cell("")
    slow = f" ({job['open_stragglers']})" if job["open_stragglers"] else ""
    return Cell(f"{finding(job['verdict'])}{slow}", state_style(job["verdict"]))


# One job --------------------------------------------------------------------------------------------------------------


def state_lines(job: Json, terminal: Terminal, now: float) -> list[str]:
    """State of one job in a sentence and a row of figures, and what a person should do."""
    name = job["id"] if job["name"] == job["id"] else f"{job['name']} ({job['id']})"
    word = terminal.paint(printable(job["state"].upper()), state_style(job["state"]))
    lines = [f"JOB {terminal.paint(printable(name), 'bold')} is {word}"]
    lines += terminal.wrapped(job["title"], "  ", reason_style(job))
    if row := verdict_row(job, now):
        lines += terminal.wrapped(row, "  ")
    return lines + advice_lines(job, terminal)


def headline_lines(job: Json, terminal: Terminal, now: float) -> list[str]:
    """:func:`state_lines`, with the figures of the attempt, and how it trains or has trained."""
    lines = state_lines(job, terminal, now)
    world = count(job["world_size"], "rank")
    reporting = f"{job['ranks_reporting']} of {world} reporting" if job["ended_at"] is None else world
    facts = [reporting, f"attempt {job['attempt']}"]
    facts.append(f"{count(job['restarts'], 'restart')} of {job['max_restarts']}")
    if job["iteration"] is not None:
        speed = _pace(job)
        facts.insert(0, f"step {job['iteration']}" + (f" at {speed}" if speed else ""))
    if job["observe_only"]:
        facts.append("observe only: no action on the ranks")
    facts.append(f"began {when(job['started_at'])}")
    if job["ended_at"] is not None:
        facts.append(f"ended {when(job['ended_at'])}")
    lines += terminal.wrapped(", ".join(facts), "  ")
    return lines + (
        terminal.wrapped("; ".join(each["text"] for each in account), "  ") if (account := job.get("account")) else []
    )


def _ranks(snapshot: JobSnapshot, terminal: Terminal) -> list[str]:
    if not snapshot.ranks or (snapshot.job["ended_at"] is not None and set(snapshot.ranks) == {"unseen"}):
        return []  # a job that was loaded from its record has no ranks any more
    width = max(len(state) for state in snapshot.ranks)
    digits = max(len(str(len(members))) for members in snapshot.ranks.values())
    lines = ["RANKS"]
    for state, members in snapshot.ranks.items():
        label = f"{state:<{width}}  {len(members):>{digits}}"
        first, *more = terminal.wrapped(f"{label}  ({ranks(members)})", "  ")
        lines += [first.replace(state, terminal.paint(state, state_style(state)), 1), *more]
    return lines


def _incident(snapshot: JobSnapshot, terminal: Terminal, now: float) -> list[str]:
    if snapshot.incident is None:
        if snapshot.last is None:
            return []
        outcome = snapshot.last["outcome"] or "closed"
        ago = duration(max(0.0, now - snapshot.last["opened_at"]))
        ended = terminal.wrapped(f"LAST INCIDENT {ago} ago: {fault(snapshot.last['kind'])}, {outcome}")
        return ended + details_line(snapshot.last, terminal)
    incident = snapshot.incident
    since = incident["timeline"]["since"] or incident["opened_at"]
    sure = "" if incident["confirmed"] else ", only suspected so far"
    title = f"INCIDENT {fault(incident['kind'])} for {duration(max(0.0, now - since))}, {incident['phase']}{sure}"
    style = "bad" if incident["confirmed"] else "warning"
    lines = terminal.wrapped(title, "", style) + incident_lines(incident, terminal, titled=True)
    return lines + details_line(incident, terminal)


def _stragglers(snapshot: JobSnapshot, terminal: Terminal, now: float) -> list[str]:
    if not snapshot.stragglers:
        return []
    lines = [terminal.paint(f"STRAGGLERS {len(snapshot.stragglers)} now", "warning")]
    for each in snapshot.stragglers[:SHOWN]:
        lines += terminal.wrapped(each["reason"], "  ")
        lines += terminal.wrapped(
            f"for {duration(max(0.0, now - each['since']))}, {gpu_time(3600 * each['cost_gpu_hours'])} so far; action: "
            f"{spaced(each['action'])}" + (f", {each['action_reason']}" if each["action_reason"] else ""),
            "    ",
            "dim",
        )
    more = len(snapshot.stragglers) - SHOWN
    return lines + ([f"  and {count(more, 'more rank')}: 'rankwatch report --scores'"] if more > 0 else [])


def _not_finite(found: Mapping[str, Json], terminal: Terminal) -> list[str]:
    lines: list[str] = []
    for name, each in found.items():
        last = (
            "never finite in the last hour"
            if each["last_finite"] is None
            else f"last finite: {each['last_finite']:.4g}"
        )
        lines += terminal.wrapped(
            f"LOGGED {name} is NaN or infinite: {count(each['values'], 'value')}, {last}", "", "bad"
        )
    return lines


def goodput_lines(goodput: Json, terminal: Terminal) -> list[str]:
    """Goodput of a job in a sentence; none before it has taken any time."""
    lived, ratio = goodput["seconds"], goodput["ratio"]
    if not lived:
        return []
    if ratio is None:
        return [f"GOODPUT is not known yet, {duration(lived)} into the job"]
    lately, window = goodput["window"]["ratio"], goodput["window"]["seconds"]
    words = f"GOODPUT {percent(ratio)} of {duration(lived)} went into steps that were kept"
    if lately is not None and window < lived:
        words += f"; {percent(lately)} of the last {duration(window)}"
    return terminal.wrapped(words + "".join(f"; {note}" for note in goodput["notes"]))


def _goodput(goodput: Json, terminal: Terminal) -> list[str]:
    lines, lived = goodput_lines(goodput, terminal), goodput["seconds"]
    if not lines or goodput["ratio"] is None:
        return lines
    spent = sorted(((s, name) for name, s in goodput["buckets"].items() if s / lived >= 0.001), reverse=True)
    shares = ", ".join(f"{spaced(name)} {percent(s / lived)}" for s, name in spent)
    return lines + terminal.wrapped(shares, "  ", "dim")


def node_lines(job: Json, terminal: Terminal) -> list[str]:
    """The launchers of a job as a table, those in trouble first; none: no line."""
    nodes: Sequence[dict[str, Any]] = job["nodes"]
    if not nodes:
        return []
    columns = (
        Column("NODES", least=10, middle=True),
        Column("ROLE"),
        Column("RANKS", least=6),
        Column("SEEN", right=True, drop=2),
        Column("NOTE", drop=1, least=8),
    )
    over = job["ended_at"] is not None
    ordered = sorted(nodes, key=lambda node: (not node["lost"], node["role"], min(node["ranks"], default=0)))
    rows = []
    for node in ordered[:SHOWN]:
        note = node["lost"] or node["role_reason"] or node["unfit"] or node["ended_reason"] or (node["ended"] or "")
        role = "lost" if node["lost"] else node["role"]
        style = "bad" if node["lost"] else ""
        seen = "" if over else f"{duration(node['last_seen_age'])} ago"
        named = node["host"] if node["host"] == node["node"] or not node["host"] else f"{node['host']} ({node['node']})"
        rows.append([Cell(named), Cell(role, style), Cell(ranks(node["ranks"])), Cell(seen), Cell(note)])
    more = len(ordered) - SHOWN
    return terminal.table(columns, rows) + ([f"and {count(more, 'more node')}"] if more > 0 else [])
