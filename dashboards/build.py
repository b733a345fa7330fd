"""Write the Grafana dashboards from Python, so that no panel can ask for what the monitor does not publish.

Run: python dashboards/build.py           write dashboards/grafana/dashboards/*.json
     python dashboards/build.py --check   say which of them are not what would be written; exit code 1 if any

The panels stand in ``fleet.py``, ``job.py``, ``ranks.py`` and ``monitor.py`` of ``grafana/``; every metric, label and
word in them comes from ``rankwatch.contract`` and is checked while the dashboard is made (``grafana/queries.py``).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
if str(HERE) not in sys.path:  # run by its path, or loaded by a test
    sys.path.insert(0, str(HERE))

from grafana.fleet import fleet  # noqa: E402
from grafana.job import job  # noqa: E402
from grafana.monitor import monitor  # noqa: E402
from grafana.panels import Json  # noqa: E402
from grafana.ranks import ranks  # noqa: E402

FOLDER: Final = HERE / "grafana" / "dashboards"


def dashboards() -> dict[str, Json]:
    """All dashboards, by the name of their file.

    Raises:
        ValueError: a panel asks for a metric, label or word that there is not, or does not fit.
    """
    return {f"{made['uid']}.json": made for made in (fleet(), job(), ranks(), monitor())}


def written(made: Json) -> str:
    """A dashboard as its file holds it."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def drift(folder: Path) -> list[str]:
    """Names of files in a folder that differ from what would be written, are missing, or are one too many."""
    wanted = {name: written(made) for name, made in dashboards().items()}
    there = {path.name: path.read_text() for path in folder.glob("*.json")}
    return sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))


def main() -> int:
    """Read the command line; write or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a file is out of date")
    given = parser.parse_args()
    try:
        if given.check:
            if stale := drift(FOLDER):
                parser.exit(1, f"out of date: {', '.join(stale)}; run python dashboards/build.py\n")
            return 0
        for name, made in dashboards().items():
            (FOLDER / name).write_text(written(made))
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
