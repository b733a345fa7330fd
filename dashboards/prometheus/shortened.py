"""Write the rules with every ``for:`` and ``keep_firing_for:`` made shorter, to try alerts out without waiting.

Run: python dashboards/prometheus/shortened.py FOLDER [--factor 600]

Writes ``rules/*.yml`` of this folder to FOLDER, each duration divided by the factor and at least a second: with 600 a
job that hangs pages after 1 s instead of 2 minutes. Only how long a condition must hold is shorter; the ranges inside
of expressions (``[1h]``) stay, since dividing them would change what is computed.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

RULES: Final = Path(__file__).parent / "rules"
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def shortened(rules: str, factor: float) -> str:
    """The text of a rules file with each ``for:`` and ``keep_firing_for:`` divided by the factor; at least 1 s."""

    def divided(found: re.Match[str]) -> str:
        return f"{found[1]}{max(1, round(int(found[2]) * UNITS[found[3]] / factor))}s"

    return re.sub(r"^( +(?:keep_firing_)?for: )(\d+)([smhd])$", divided, rules, flags=re.MULTILINE)


def write(folder: Path, factor: float) -> None:
    """Write all rules files, shortened, to a folder that is made when it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for rules in RULES.glob("*.yml"):
        (folder / rules.name).write_text(shortened(rules.read_text(), factor))


def main() -> int:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where to write the rules; not the folder of the originals")
    parser.add_argument("--factor", type=float, default=600.0, help="divide by this (default 600)")
    given = parser.parse_args()
    if given.folder.resolve() == RULES.resolve():
        parser.error("FOLDER is the one of the originals; name another one")
    if given.factor < 1:
        parser.error(f"--factor must be at least 1, not {given.factor:g}")
    write(given.folder, given.factor)
    return 0


if __name__ == "__main__":
    sys.exit(main())
