"""Jobs that nobody watches, sick and healthy: does ``rankwatch diagnose`` name the right rank, and disturb none?

    python benchmarks/diagnose.py [--only NAME] [--start torchrun|spawn|fork|arguments|...] [--jobs N] [--json FILE]

The scripts are those of ``tests/trust``, four gloo ranks each, started as in
:mod:`support.starters`. A sick job is diagnosed a moment after its fault, a healthy one in the middle of its life; a
healthy one then has to end with code 0. *right*: the ranks at fault are named, or nobody where all are in the same
trouble; *unknown*: nobody is named; *wrong*: another rank is named, or a healthy job is said to be in trouble.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from uuid import uuid4

import _table

from rankwatch_launcher.diagnose import find
from support.ports import free_port
from support.processes import MARK, end_marked
from support.starters import STARTERS, command, job_name
from trust.runner import FAULT, FOREIGN
from trust.scripts import HERE, Script, scripts

START_SECONDS = 180.0
AFTER_FAULT = 2.0
HEALTHY_AFTER = (6.0, 14.0)
"""Seconds from the first sign of life of a healthy job at which it is diagnosed."""
HEALTHY_SECONDS = 480.0


class Job:
    """One job without Rankwatch's launcher and monitor, ended with everything that it started."""

    def __init__(self, script: Path, start: str, ranks: int, folder: Path, *arguments: str) -> None:
        self.log, self._mark, self.start = folder / "log", uuid4().hex, start
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        own = {MARK: self._mark, "TMPDIR": str(folder), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self.port = free_port()
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command(start, ranks, self.port, script, folder, arguments=arguments),
                env=kept | own,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def faults(self) -> dict[int, float]:
        """When each rank's fault began, the first time."""
        found: dict[int, float] = {}
        for rank, at in FAULT.findall(self.log.read_text(errors="replace")):
            found.setdefault(int(rank), float(at))
        return found

    @property
    def name(self) -> str:
        """What the diagnosis calls it."""
        return job_name(self.start, self.port, self.process.pid)

    def diagnosed(self, *flags: str) -> tuple[dict[str, Any], int, float]:
        """What is said of it, the exit code, and how long that took."""
        began = time.monotonic()
        ask = [sys.executable, "-P", "-m", "rankwatch", "diagnose", "--json", "--job", self.name, *flags]
        done = subprocess.run(ask, capture_output=True, text=True, timeout=120, check=False)
        took = time.monotonic() - began
        answer = json.loads(done.stdout) if done.stdout else {"jobs": [], "error": done.stderr}
        return answer["jobs"][0] if answer["jobs"] else {}, done.returncode, took

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        end_marked(self._mark)


def run(script: Script, start: str, ranks: int) -> dict[str, Any]:
    """Run one script, diagnose it, and judge what was said."""
    folder = Path(tempfile.mkdtemp(prefix="diagnose"))
    result: dict[str, Any] = {"name": script.name, "start": start, "verdict": "", "said": [], "took": []}
    with contextlib.closing(Job(script.path, start, ranks, folder)) as job:
        try:
            (_healthy if script.at_fault is None else _sick)(job, script, result)
        except TimeoutError as error:
            result["verdict"] = f"not run: {error}"
    if keep := os.environ.get("DIAGNOSE_KEEP"):
        shutil.copy(job.log, Path(keep) / f"{script.path.stem}.{start}.log")
    shutil.rmtree(folder, ignore_errors=True)
    return result


def _say(job: Job, result: dict[str, Any]) -> dict[str, Any]:
    said, code, took = job.diagnosed()
    named = sorted(culprit["rank"] for culprit in said.get("culprits", []))
    result["took"].append(round(took, 1))
    brief = {"code": code, "verdict": said.get("verdict", "no job"), "named": named, "reason": said.get("reason", "")}
    result["said"].append(brief)
    return brief


def _sick(job: Job, script: Script, result: dict[str, Any]) -> None:
    until = time.monotonic() + START_SECONDS
    while not job.faults():
        if time.monotonic() > until or job.process.poll() is not None:
            raise TimeoutError("no fault in time")
        time.sleep(0.1)
    time.sleep(AFTER_FAULT)
    said = _say(job, result)
    named, fault = set(said["named"]), set(script.at_fault or ())
    if named - fault:
        result["verdict"] = "wrong"
    elif said["verdict"] == "healthy":
        result["verdict"] = "unseen"
    else:
        result["verdict"] = "right" if named == fault else "part" if named else "unknown"


def _healthy(job: Job, script: Script, result: dict[str, Any]) -> None:
    del script
    until = time.monotonic() + START_SECONDS
    while job.name not in found_jobs():
        if time.monotonic() > until or job.process.poll() is not None:
            raise TimeoutError("no ranks in time")
        time.sleep(0.5)
    began = time.monotonic()
    for after in HEALTHY_AFTER:
        time.sleep(max(0.0, began + after - time.monotonic()))
        if job.process.poll() is None:
            _say(job, result)
    code = job.process.wait(HEALTHY_SECONDS)
    result["exit_code"] = code
    troubled = any(said["verdict"] == "trouble" for said in result["said"])
    result["verdict"] = "wrong" if troubled else "right" if code == 0 else f"ended with code {code}"


def found_jobs() -> set[str]:
    """The names of all jobs of this machine."""
    return {each.job for each in find.ranks().ranks}


def main() -> None:
    arguments = _table.arguments(
        __doc__,
        only=(list[str](), "scripts whose name holds one of these"),
        start=(["torchrun"], "how they are started", {"choices": STARTERS}),
        ranks=(4, "ranks of each"),
        jobs=(1, "jobs that run beside each other"),
    )
    # Those with --auto are run without a line of Rankwatch here, as all others call what has no monitor.
    chosen = [s for s in scripts() if not arguments.only or any(part in s.name for part in arguments.only)]
    results = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        tasks = [pool.submit(run, s, start, arguments.ranks) for start in arguments.start for s in chosen]
        for done in as_completed(tasks):
            result = done.result()
            results.append(result)
            last = (result["said"] or [{"named": [], "reason": "", "verdict": ""}])[-1]
            line = (
                f"{result['name']:34} {result['start']:10} {result['verdict']:22} {last['verdict']:8} {last['named']} "
            )
            print(line + f"{result['took']} {last['reason']}", flush=True)
            _table.write(arguments.json, results=results)
    counts = Counter((result["name"].partition("/")[0], result["verdict"]) for result in results)
    print(_table.machine())
    for (kind, verdict), number in sorted(counts.items()):
        print(f"{kind:8} {verdict:24} {number}")


if __name__ == "__main__":
    main()
