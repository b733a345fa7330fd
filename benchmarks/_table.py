"""What every benchmark reads and prints: its options, the machine, small tables, and JSON when asked for.

It adds ``tests/`` to the path: the simulator, scenes and helpers for processes there serve the benchmarks too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

Rows = Mapping[str, Mapping[str, Any]]
"""Figures by the name of their row."""


def arguments(doc: str | None, **options: tuple[Any, ...]) -> argparse.Namespace:
    """Read ``--json FILE`` and the given options, each a default, its help, and further words for argparse if any.

    A default of None stands for a file, False for a switch, a list for several values like its first, or texts.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    for name, (default, text, *more) in options.items():
        words: dict[str, Any] = {"default": default, "help": text}
        if default is None:
            words |= {"type": Path, "metavar": "FILE"}
        elif isinstance(default, list):
            words |= {"nargs": "+", "type": type((default or [""])[0])}
        else:
            words |= {"action": "store_true"} if default is False else {"type": type(default)}
        parser.add_argument(f"--{name.replace('_', '-')}", **words, **dict(*more))
    return parser.parse_args()


def machine() -> str:
    """The machine in one line."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return f"{os.cpu_count()} x {model}, Python {platform.python_version()}, {platform.system()} {platform.release()}"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below ``share`` of all values; NaN without any."""
    ordered = sorted(values) or [float("nan")]
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def share(part: float, whole: float) -> float:
    """The part of a whole; NaN of nothing."""
    return part / whole if whole else float("nan")


def spread(values: Sequence[float]) -> dict[str, float]:
    """Count, minimum, median, 99th percentile and maximum; NaN without any."""
    figures = {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99)}
    nan = float("nan")
    return {"n": len(values), "min": min(values, default=nan), **figures, "max": max(values, default=nan)}


def report(rows: Rows, unit: str, target: Path | None, **more: Any) -> None:
    """Print the machine and the rows; write them as JSON, with what else there is to keep."""
    head()
    show(rows, unit)
    write(target, unit=unit, figures=rows, **more)


def head() -> None:
    """Print the machine and the command."""
    print(f"{machine()}\ncommand: {' '.join(sys.argv)}", flush=True)


def show(rows: Rows, title: str = "") -> None:
    """Print rows as a table; a row that lacks a figure has a dash there."""
    heads = list(dict.fromkeys(head for figures in rows.values() for head in figures))
    width = max(map(len, (title, *rows)))
    print(f"{title:<{width}}  " + "  ".join(f"{head:>10}" for head in heads))
    for name, figures in rows.items():
        print(f"{name:<{width}}  " + "  ".join(f"{_cell(figures.get(head, '-')):>10}" for head in heads), flush=True)


def show_list(figures: Mapping[str, Any]) -> None:
    """Print figures one below the other, those that are spreads as a table before them."""
    spreads = {name: value for name, value in figures.items() if isinstance(value, dict) and "p99" in value}
    if spreads:
        show(spreads)
    for name, value in figures.items():
        if name not in spreads and value not in (None, {}, []):
            print(f"{name:<60} {_cell(value, ',.6g')}", flush=True)


def write(target: Path | None, **content: Any) -> None:
    """Write JSON, with the machine and the command, if there is a file for it."""
    if target is not None:
        target.write_text(json.dumps({"machine": machine(), "command": " ".join(sys.argv)} | content, indent=1) + "\n")


def replace_between(document: Path | None, begin: str, text: str, end: str) -> None:
    """Replace what stands between two marks of a document, if there is one.

    Raises:
        ValueError: the document lacks a mark.
    """
    if document is None:
        return
    before, found, rest = document.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{document} has no place for the figures: it needs a line '{begin}' and one '{end}'")
    document.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def _cell(value: Any, form: str = ".4g") -> str:
    return format(value, form) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
