"""Real jobs of four ranks, one of them slow from the middle on, and healthy twins: who is named, why, and how soon.

    python benchmarks/slow_jobs.py [--only KIND] [--before 60] [--after 90] [--loaded] [--together] [--json FILE]
    [--write docs/stragglers.md]

Each is run by ``rankwatch run`` as a user does, gloo on this machine; kinds that begin with ``auto-`` are unmodified
scripts under ``--auto``. A twin does the same without the fault; ``--together`` runs both at once, ``--loaded`` two
busy loops beside them. ``in`` are the seconds from the fault until a rank, or the workload, is named. ``record``: after
the end ``rankwatch report --json`` has the rank; ``why``: ``rankwatch why`` states the change and the rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import _table

from trust.runner import Run, busy_loops, end_all
from trust.scripts import Script

RANK = Path(__file__).with_name("_slow_rank.py")
SLOW_RANK = {"loader": 2, "cpu": 1, "memory": 3, "logging": 0, "checkpoint": 0, "compute": 2, "garbage": 2}
CAUSES = {
    "loader": {"data"},
    "cpu": {"host", "compute"},
    "memory": {"host"},
    "logging": {"host"},
    "checkpoint": {"host", "compute"},
    "compute": {"compute"},
    "garbage": {"host"},
    "uneven": {"compute"},
}
"""Right causes. Who does not get a CPU, or the interpreter's lock, does not get it in computation either."""
JOBS = (*CAUSES, "auto-loader", "auto-compute", "auto-logging", "auto-garbage")
TWIN = {"healthy", "suspected", "no_step", "unexplained"}
"""Verdicts of a healthy job; the last one where other processes use its CPUs."""
START_SECONDS = 120.0
BETWEEN = ("<!-- real jobs: written by benchmarks/slow_jobs.py --write -->", "<!-- end of real jobs -->")


@dataclass
class Result:
    """What one job has shown."""

    kind: str
    twin: bool
    named: list[int] = field(default_factory=list)
    """Ranks that were named at any time."""
    seconds: float | None = None
    cause: str = ""
    verdicts: dict[str, int] = field(default_factory=dict)
    """Looks by verdict."""
    late: list[str] = field(default_factory=list)
    why: str = ""
    why_rank: bool = False
    record: bool = False
    failed: str = ""

    @property
    def expected(self) -> int | None:
        return None if self.twin else SLOW_RANK.get(self.kind.removeprefix("auto-"))

    @property
    def right(self) -> bool:
        if self.failed:
            return False
        if self.twin:
            return not self.named and set(self.verdicts) <= TWIN
        causes = CAUSES[self.kind.removeprefix("auto-")]
        return self.seconds is not None and self.cause in causes and set(self.named) <= {self.expected}


def run(kind: str, twin: bool, before: float, after: float) -> Result:
    """Run one job and look at what is published."""
    result, folder = Result(kind, twin), Path(tempfile.mkdtemp(prefix="slow"))
    automatic = kind.startswith("auto-")
    command = ("-m", "rankwatch", "run", *(("--auto",) if automatic else ()))
    bare = kind.removeprefix("auto-")
    rank = SLOW_RANK.get(bare, -1)
    arguments = (
        "none" if twin else bare,
        str(rank),
        f"{before:g}",
        f"{before + after:g}",
        *(("unmodified",) if automatic else ()),
    )
    with contextlib.closing(Run(Script(RANK, None), command, folder, arguments)) as job:
        try:
            _look(job, result, START_SECONDS + before + after, before)
            _afterwards(job, result, folder)
        except AssertionError as error:
            result.failed = str(error)[-2000:]
    shutil.rmtree(folder, ignore_errors=True)
    return result


def _look(job: Run, result: Result, patience: float, before: float) -> None:
    deadline, began = time.monotonic() + patience, None
    while job.process.poll() is None:
        assert time.monotonic() < deadline, f"did not end in time:\n{job.printed()[-1000:]}"
        scores = job.get("/scores")
        if scores:
            began = began or time.time()
            fault = min(job.faults().values(), default=began + before if result.kind == "uneven" else None)
            _note(result, scores, fault)
        time.sleep(1.0)
    assert job.process.returncode == 0, f"exit code {job.process.returncode}:\n{job.printed()[-1000:]}"


def _note(result: Result, scores: dict[str, Any], fault: float | None) -> None:
    verdict = scores["finding"]["verdict"]
    result.verdicts[verdict] = result.verdicts.get(verdict, 0) + 1
    named = [each["rank"] for each in scores["stragglers"]]
    result.named = sorted({*result.named, *named})
    if (late := scores["late"]) is not None:
        words = f"{late['rank']}: {late['slow']}/{late['of']} {100 * late['share']:.0f}% {late['doubt']}"
        result.late += [words] if result.late[-1:] != [words] else []
    found = result.expected in named or (result.kind.endswith("uneven") and verdict == "workload")
    if fault is not None and found:
        result.seconds = result.seconds or round(time.time() - fault, 1)
        result.cause = scores["stragglers"][0]["cause"] if named else scores["finding"]["cause"]


def _afterwards(job: Run, result: Result, folder: Path) -> None:
    """What the commands of a user print once the job has ended."""
    own = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "200"}

    def rankwatch(*command: str) -> str:
        line = [sys.executable, "-m", "rankwatch", *command, job.job]
        return subprocess.run(line, env=own, capture_output=True, text=True, timeout=120, check=False).stdout

    why = json.loads(rankwatch("why", "--json") or "{}")
    result.why = f"{why.get('kind')}: {why.get('sentence')}"
    result.why_rank = result.expected in [each["rank"] for each in why.get("slow", ())]
    report = json.loads(rankwatch("report", "--json") or "{}")
    result.record = result.expected in [each["rank"] for each in report.get("stragglers", ())]


def table(results: list[Result]) -> str:
    """The results as a table for the manual."""
    lines = ["| job | named | cause | in | why | record | twin |", "|---|---|---|---|---|---|---|"]
    for kind in JOBS:
        slow = next((each for each in results if each.kind == kind and not each.twin), None)
        twin = next((each for each in results if each.kind == kind and each.twin), None)
        if slow is None:
            continue
        named = ", ".join(map(str, slow.named)) or ("workload" if slow.seconds else "none")
        seconds = "" if slow.seconds is None else f"{slow.seconds:.0f} s"
        why, of_twin = slow.why.partition(":")[0], "" if twin is None else "silent" if twin.right else "named"
        record = "" if slow.expected is None else "yes" if slow.record else "no"
        lines.append(f"| {kind} | {named} | {slow.cause} | {seconds} | {why} | {record} | {of_twin} |")
    return "\n".join(lines)


def _stop(*_: object) -> None:
    end_all()  # else the pool waits for their ends
    sys.exit(143)


def main() -> None:
    """Run the chosen jobs; print a line for each, then the table."""
    options = _table.arguments(
        __doc__,
        only=(list[str](), "kinds", {"choices": JOBS}),
        before=(60.0, "seconds before the fault"),
        after=(90.0, "seconds after it"),
        loaded=(False, "two busy loops beside them"),
        together=(False, "a job and its twin at once"),
        write=(None, "the document"),
    )
    results: list[Result] = []
    signal.signal(signal.SIGTERM, _stop)
    print(_table.machine())
    with busy_loops(2 if options.loaded else 0), ThreadPoolExecutor(2 if options.together else 1) as pool:
        for kind in options.only or JOBS:
            begun = [pool.submit(run, kind, twin, options.before, options.after) for twin in (False, True)]
            for done in begun:
                result = done.result()
                results.append(result)
                words = "right" if result.right else "WRONG"
                print(f"{kind}{' twin' if result.twin else ''}: {words} {json.dumps(asdict(result))}", flush=True)
                _table.write(options.json, results=[asdict(each) for each in results])
    print(table(results))
    _table.replace_between(options.write, BETWEEN[0], table(results), BETWEEN[1])


if __name__ == "__main__":
    main()
