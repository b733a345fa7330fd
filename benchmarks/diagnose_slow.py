"""Jobs of four ranks of plain torchrun, one slow in one way, and twins: whom does ``diagnose --slow`` name?

    python benchmarks/diagnose_slow.py [--only KIND] [--seconds 30] [--repeats 1] [--json FILE]

The kinds are those of ``_slow_rank.py``. *right*: the slow rank alone, or nobody in a twin; *quiet*: nobody in a slow
job; *wrong*: another rank; *unseen*: the machine was too busy to look.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import _table
from diagnose import HEALTHY_AFTER, START_SECONDS, Job, found_jobs

from support.waiting import wait_for

RANK = Path(__file__).with_name("_slow_rank.py")
SLOW_RANK = {"loader": 2, "memory": 3, "logging": 0, "compute": 2, "garbage": 2}
NOBODY = -1
BEFORE, LASTS = "1", "600"


def run(kind: str, twin: bool, seconds: float) -> dict[str, Any]:
    """Start one job, and say whom its profile names."""
    folder = Path(tempfile.mkdtemp(prefix="diagnose"))
    expected = [] if twin else [SLOW_RANK[kind]]
    words = (kind, str(NOBODY if twin else SLOW_RANK[kind]), BEFORE, LASTS, "unmodified")
    with contextlib.closing(Job(RANK, "torchrun", 4, folder, *words)) as job:
        if twin:
            wait_for(lambda: job.name in found_jobs(), "its ranks are there", START_SECONDS)
            time.sleep(HEALTHY_AFTER[0])
        else:
            wait_for(job.faults, "the fault begins", START_SECONDS)
        said, code, took = job.diagnosed("--slow", f"{seconds:g}")
    shutil.rmtree(folder, ignore_errors=True)
    late = (said.get("slowness") or {}).get("late", [])
    named = [each["rank"] for each in late] if said.get("verdict") == "slow" else []
    verdict = "right" if named == expected else "quiet" if not named else "wrong"
    verdict = verdict if said else "unseen"
    return {
        "kind": kind,
        "twin": twin,
        "verdict": verdict,
        "named": named,
        "code": code,
        "took": round(took, 1),
        "reason": said.get("reason", ""),
    }


def main() -> None:
    """Run them all, one after the other."""
    given = _table.arguments(
        __doc__,
        only=(list(SLOW_RANK), "kinds", {"choices": list(SLOW_RANK)}),
        seconds=(30.0, "of a profile"),
        repeats=(1, "how often each"),
    )
    results = []
    for kind in given.only * given.repeats:
        for twin in (False, True):
            try:
                results.append(run(kind, twin, given.seconds))
            except AssertionError as error:
                results.append({"kind": kind, "twin": twin, "verdict": f"not run: {error}"})
            last = results[-1]
            told = f"{last.get('named', '')} in {last.get('took', '')} s: {last.get('reason', '')}"
            print(f"{kind:8} {'twin' if twin else 'slow'} {last['verdict']:6} {told}", flush=True)
            _table.write(given.json, results=results)
    counts = Counter(("twins" if each["twin"] else "slow", each["verdict"]) for each in results)
    print(_table.machine())
    for (what, verdict), number in sorted(counts.items()):
        print(f"{what:6} {verdict:6} {number}")


if __name__ == "__main__":
    main()
