"""Formats values for text output: durations, ranks as ranges, numbers; removes control characters."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rankwatch.contract.enums import RESTARTS

WIDTH: Final = 100
"""Columns of output to anything but a terminal."""


def duration(seconds: float) -> str:
    """``12.3 s``, ``4 min 05 s``, ``3 h 07 min``, ``2 d 05 h``."""
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def ranks(members: Iterable[int], shown: int = 12) -> str:
    """Ranks as ranges: ``0-2, 5, 8-11``, at most ``shown`` of them."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(members):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    more = f" and {len(parts) - shown} more" if len(parts) > shown else ""
    return ", ".join(parts[:shown]) + more


def when(at: float) -> str:
    """Unix seconds as a date and time."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def percent(part: float) -> str:
    """``12.3 %``."""
    return f"{100 * part:.1f} %"


def percent_points(share: float) -> int:
    """``27``: a share in whole percent. Halves are rounded up, as on the page."""
    return math.floor(100 * share + 0.5)


def whole_percent(share: float) -> str:
    """``27 %``: a share that is measured roughly."""
    return f"{percent_points(share)} %"


def capital(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]


def uncapital(text: str) -> str:
    """With a small first letter."""
    return text[:1].lower() + text[1:]


def of_it_lost(seconds: float | None, steps: int | None) -> str:
    """``, of it 7.5 s of training lost (8 steps)``: the part of a cost that lost steps are; empty: none, or unknown."""
    if not seconds:
        return ""
    of_steps = f" ({count(steps, 'step')})" if steps else ""
    return f", of it {duration(seconds)} of training lost{of_steps}"


def gpu_time(seconds: float) -> str:
    """What ranks cost, one GPU each: ``3.6 GPU-minutes``, from an hour on ``1.25 GPU-hours``. The page has the same."""
    if seconds < 3597:
        return f"{seconds / 60:.1f} GPU-minutes"
    hours = seconds / 3600
    return f"{hours:,.{0 if hours >= 99.95 else 1 if hours >= 9.995 else 2}f} GPU-hours"


def verdict_row(verdict: Mapping[str, Any], now: float) -> str:
    """The figures of a verdict: ``since 14:37:31 UTC (18.2 s), 4 ranks idle, 1.1 GPU-minutes lost, restart in 4 s``."""
    since, lost, follows = verdict["since"], verdict["lost"], verdict["next"]
    parts = []
    if since is not None:
        age = duration(max(0.0, now - since))
        parts.append(f"at {when(since)}" if verdict["ended_at"] is not None else f"since {when(since)} ({age})")
    if verdict["idle"]:
        parts.append(f"{count(verdict['idle'], 'rank')} idle")
    if lost is not None:
        grown = 0.0 if lost["since"] is None else max(0.0, now - lost["since"])
        parts.append(f"{gpu_time((lost['seconds'] + grown) * lost['gpus'])} lost")
    if follows is not None:
        due = "" if follows["due"] is None else f" {duration(max(0.0, follows['due'] - now))}"
        parts.append(f"{follows['text']}{due}")
    return ", ".join(parts)


def pace(steps_per_second: float) -> str:
    """``3.20 steps/s``, ``12.5 s a step``, or ``0 steps/s``."""
    if steps_per_second <= 0:
        return "0 steps/s"
    return f"{steps_per_second:.2f} steps/s" if steps_per_second >= 0.1 else f"{1 / steps_per_second:.1f} s a step"


def members_of(members: Sequence[int]) -> str:
    """``rank 3``, ``3 ranks (0-2)``."""
    return f"rank {members[0]}" if len(members) == 1 else f"{len(members)} ranks ({ranks(members)})"


def count(number: int, what: str) -> str:
    """``1 rank``, ``3 ranks``."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def size(amount: float) -> str:
    """Bytes as ``512 KiB``, ``64.0 MiB``, ``1.5 TiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit in ("bytes", "KiB") else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def bandwidth(bytes_per_second: float) -> str:
    """``43 GB/s``, ``1.6 MB/s``: powers of ten, as NCCL's tests have it."""
    for factor, unit in ((1e9, "GB/s"), (1e6, "MB/s")):
        if bytes_per_second >= 0.9995 * factor:
            value = bytes_per_second / factor
            return f"{value:,.{0 if value >= 9.95 else 1}f} {unit}"
    return f"{bytes_per_second / 1e3:.1f} kB/s"


def spaced(word: str) -> str:
    """An identifier of the API with spaces: ``section_overrun`` becomes ``section overrun``."""
    return word.replace("_", " ")


_FAULTS: Final = {
    "section_overrun": "section over its limit",
    "out_of_section_overrun": "outside sections for too long",
    "heartbeat_overrun": "no heartbeat",
    "silent": "no report",
    "stalled": "no step completes",
    "process_exited": "crash",
}


def fault(kind: str) -> str:
    """The kind of an incident in words, those of the page."""
    return _FAULTS.get(kind) or spaced(kind)


_FINDINGS: Final = {
    "worker": "slow rank",
    "stage": "slow stage",
    "workload": "uneven load",
    "link": "slow link",
    "unexplained": "lost time",
    "no_step": "no step",
}


def finding(verdict: str) -> str:
    """The verdict on a job's speed in words."""
    return _FINDINGS.get(verdict) or spaced(verdict)


PHASES: Final = {
    "detect": "to find it",
    "confirm": "to confirm it",
    "capture": "to take stacks",
    "restart": "to restart",
    "stop": "to stop",
    "recover": "to the first new step",
    "unresolved": "unresolved",
}
"""What the time of each phase of an incident went into."""


def action_line(incident: Mapping[str, Any]) -> str:
    """What was or will be done about an incident, as the API has it: ``planned action: restart; the policy is ...``."""
    action, timeline, restarts = incident["action"], incident["timeline"], incident["action"] in RESTARTS
    label, what = "action", spaced(action)
    if action == "log":
        what = "none, only recorded"
    elif incident["phase"] in ("detected", "capturing", "confirming") and not (
        action == "capture" and timeline["captured"] is not None
    ):
        label = "planned action"
    elif incident["phase"] == "closed" and restarts and timeline["restarted"] is None:
        what += ", not taken"
    return f"{label}: {what}" + (f"; {incident['action_reason']}" if incident["action_reason"] else "")


def log_lines(log: Mapping[str, Any], indent: str) -> list[str]:
    """The log of a failed rank, as the API has it: what it is, its last lines, and what shows the whole of it."""
    on = f" on {log['host']}" if log["host"] else ""
    of = f", {log['stream']}" if log["stream"] else ""
    place, text = log["place"], log["text"]
    lines = wrapped(printable(f"{uncapital(log['title'])}{on}{of}: {uncapital(text)}"), indent)
    lines += [f"{indent}  | {printable(line)}" for line in log["lines"]]
    if place["command"]:
        where = f"on {place['host']}: " if place["host"] else ""
        lines.append(printable(f"{indent}  the whole log, {where}{place['command']}"))
        lines += wrapped(note, f"{indent}  ") if (note := place.get("note")) else []
    return lines


def printable(line: str) -> str:
    """The line with unprintable characters replaced."""
    # Names are untrusted: a host called "\x1b[2J" must not clear the screen.
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def run_lines(command: str, host: str, indent: str) -> list[str]:
    """A command on a line of its own, to be copied, below the host that it is run on; empty: there is none."""
    if not command:
        return []
    where = [f"{indent}on {printable(host)}:"] if host else []
    return [*where, f"{indent}{printable(command)}"]


def refit(lines: Iterable[str], width: int) -> list[str]:
    """Text that was wrapped at :data:`WIDTH` columns, wrapped at another width; lines that fit are unchanged.

    A line continues the one before if it is indented by two more columns and its first word did not fit there.
    """
    paragraphs: list[tuple[str, str]] = []  # the paragraph and its last line
    for line in lines:
        words, indent = line.split(), len(line) - len(line.lstrip())
        if paragraphs and words:
            paragraph, last = paragraphs[-1]
            inside = indent == len(paragraph) - len(paragraph.lstrip()) + 2
            if inside and len(last) <= WIDTH < len(last) + 1 + len(words[0]):
                paragraphs[-1] = (f"{paragraph} {line.strip()}", line)
                continue
        paragraphs.append((line, line))
    fitted = []
    for paragraph, _ in paragraphs:
        first = " " * (len(paragraph) - len(paragraph.lstrip()))
        more = textwrap.wrap(
            paragraph.strip(), width, initial_indent=first, subsequent_indent=first + "  ", break_on_hyphens=False
        )
        fitted += [paragraph] if len(paragraph) <= width else more
    return fitted


def wrapped(sentence: str, indent: str) -> list[str]:
    """A sentence as lines of :data:`WIDTH` columns; continuation lines are indented by two more."""
    return textwrap.wrap(
        sentence,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
