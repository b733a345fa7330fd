"""What every benchmark prints: the machine, a small table, and JSON when asked for."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def arguments(doc: str, **options: tuple[Any, str]) -> argparse.Namespace:
    """Read ``--json FILE`` and the given options, each a default and its help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    for name, (default, text) in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=text)
    return parser.parse_args()


def machine() -> str:
    """The machine in one line."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return f"{os.cpu_count()} x {model}, Python {platform.python_version()}, {platform.system()} {platform.release()}"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below ``share`` of all values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Count, minimum, median, 99th percentile and maximum."""
    return {
        "n": len(values),
        "min": min(values),
        "p50": percentile(values, 0.5),
        "p99": percentile(values, 0.99),
        "max": max(values),
    }


def report(rows: dict[str, dict[str, float]], unit: str, target: Path | None) -> None:
    """Print the rows, each a name with its figures, and write them as JSON."""
    print(machine())
    print(f"command: {' '.join(sys.argv)}")
    heads = list(next(iter(rows.values())))
    width = max(len(name) for name in rows)
    print(f"{unit:<{width}}  " + "  ".join(f"{head:>9}" for head in heads))
    for name, figures in rows.items():
        print(f"{name:<{width}}  " + "  ".join(f"{figures[head]:>9.4g}" for head in heads))
    if target is not None:
        target.write_text(json.dumps({"machine": machine(), "unit": unit, "figures": rows}, indent=2) + "\n")
