"""The figures of one run as Markdown, written between two marks of a document: docs/versus.md has no other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

BEGIN: Final = "<!-- figures: written by benchmarks/versus/run.py --write -->"
END: Final = "<!-- end of the figures -->"
HEADINGS: Final = {
    "calls": "What a call costs, and what training suffers from the monitoring process",
    "memory": "Processes and memory (MB)",
    "reports": "The straggler report",
    "recovery": "From a fault to the first new step of all ranks (seconds)",
}
COLUMNS: Final = {"rankwatch": "Rankwatch", "nvrx": "NVRx", "times": "times", "rss": "resident", "pss": "PSS"}


def figures(reported: Mapping[str, Any], date: str) -> str:
    """The section: machine, command, and a table for each part that was measured.

    Args:
        reported: what ``--json`` writes.
        date: the day of the run, ISO 8601.
    """
    lines = [f"{date}: {reported['machine']}; {reported['peer']}.", "", f"`{reported['command']}`"]
    for part, rows in reported["figures"].items():
        lines += ["", f"### {HEADINGS[part]}", "", *_table(rows)]
    for part, reason in reported["failed"].items():
        lines += ["", f"### {HEADINGS[part]}", "", f"Could not be measured in this run: {reason.splitlines()[0]}"]
    return "\n".join(lines)


def _table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    heads = list(dict.fromkeys(head for each in rows.values() for head in each))
    lines = ["| | " + " | ".join(COLUMNS.get(head, head) for head in heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for name, each in rows.items():
        cells = [_cell(each.get(head)) for head in heads]
        if any(cells):
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _cell(value: Any) -> str:
    """Two digits that count; words are for the terminal."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, str) or math.isnan(value):
        return ""
    if isinstance(value, int) or value == 0:
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"
