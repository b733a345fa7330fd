"""Real scripts, healthy and sick, with nothing configured: what is disturbed, found, how soon, with which rank.

    python benchmarks/trust_suite.py [--only NAME] [--loaded] [--parallel N] [--json FILE] [--table docs/detection.md]

The scripts are those of ``tests/trust``, four gloo ranks each, run by ``rankwatch run`` as a user does. ``--loaded``
runs two busy loops beside them. ``--results FILE`` (may be repeated) makes the table of earlier runs instead. One after
the other they take an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import _table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.forked_ranks import run_command
from trust.runner import Result, busy_loops, end_all, run
from trust.scripts import PROVABLE_AFTER, Script, scripts

SOON = 15.0
"""Seconds from the moment when a fault is provable within which a sick job has to be found."""
BETWEEN = ("<!-- trust: begin -->", "<!-- trust: end -->")


def measure(
    chosen: list[Script], parallel: int, loaded: bool, patience: float, forked: bool, target: Path | None
) -> list[dict[str, Any]]:
    """Run the scripts; print a line for each as it ends."""
    results: list[dict[str, Any]] = []
    command = run_command() if forked else ("-m", "rankwatch", "run")
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    with busy_loops(2 if loaded else 0), ThreadPoolExecutor(min(parallel, 2)) as pool:
        for done in as_completed([pool.submit(run, script, command, patience=patience) for script in chosen]):
            result: Result = done.result()
            results.append(result.to_json())
            after = "" if result.seconds is None else f"{result.seconds:6.1f} s"
            print(
                f"{result.name:34} {result.verdict.splitlines()[0]:34} {after:9} {result.ranks} {result.sentence}",
                flush=True,
            )
            if target is not None:
                target.write_text(
                    json.dumps({"machine": _table.machine(), "loaded": loaded, "results": results}, indent=1)
                )
    return sorted(results, key=lambda each: each["name"])


def _stop(*_: object) -> None:
    end_all()
    os._exit(143)


def summary(title: str, results: list[dict[str, Any]]) -> str:
    """One row: what a reader wants to know of a run of all scripts."""
    healthy = [each for each in results if each["at_fault"] is None]
    sick = [each for each in results if each["at_fault"] is not None]
    found = [each for each in sick if each["seconds"] is not None]
    seconds = [each["seconds"] for each in found] or [0.0]
    soon = sum(each["seconds"] <= SOON + PROVABLE_AFTER.get(each["name"].split("/")[-1], 0.0) for each in found)
    wrong = sum(each["verdict"].startswith("named rank") for each in sick)
    right = sum(each["verdict"] == "right" for each in sick)
    return (
        f"| {title} | {sum(each['verdict'] == 'right' for each in healthy)} of {len(healthy)} | "
        f"{sum(each['confirmed'] > 0 for each in healthy)} | {len(found)} of {len(sick)} | "
        f"{soon} | {_table.percentile(seconds, 0.5):.1f} s, "
        f"{max(seconds):.1f} s | {right} | {wrong} |"
    )


def table(runs: list[tuple[str, list[dict[str, Any]]]]) -> str:
    """The summary of each run, then one row for each script with the columns of all runs."""
    lines = [
        "| machine | healthy, undisturbed | healthy, incident confirmed | sick, found | "
        "within 15 s of being provable | p50, longest | exactly the right ranks | a wrong rank |",
        "|---|---|---|---|---|---|---|---|",
        *(summary(title, results) for title, results in runs),
        "",
        "| script | what it does | at fault | " + " | ".join(title for title, _ in runs) + " |",
        "|---|---|---|" + "---|" * len(runs),
    ]
    names = sorted({(each["name"], each["does"], str(each["at_fault"])) for _, results in runs for each in results})
    for name, does, at_fault in names:
        cells = [next((_cell(each) for each in results if each["name"] == name), "") for _, results in runs]
        at_fault = {"None": "", "[]": "all alike"}.get(at_fault, at_fault.strip("[]"))
        lines.append(f"| {name} | {does} | {at_fault} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(result: dict[str, Any]) -> str:
    verdict = result["verdict"].splitlines()[0][:60]
    if result["at_fault"] is None and verdict == "right":
        return "undisturbed" + (f", {result['suspected']} suspected" if result["suspected"] else "")
    after = "" if result["seconds"] is None else f"{result['seconds']:.1f} s"
    return after if verdict == "right" else f"**{verdict}**" + (f", {after}" if after else "")


def main() -> None:
    """Run the scripts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="scripts whose name has this part")
    parser.add_argument("--loaded", action="store_true", help="two busy loops beside them")
    parser.add_argument("--parallel", type=int, default=1, help="scripts at once (timings suffer)")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds after which a fault counts as not found")
    parser.add_argument("--forked", action="store_true", help="fork ranks with torch imported: starts cost less")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here too")
    parser.add_argument("--results", action="append", type=Path, metavar="FILE", help="take these instead of running")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the table between the marks of this document")
    asked = parser.parse_args()
    if asked.results:
        read = [json.loads(file.read_text()) for file in asked.results]
        runs = [("loaded" if each["loaded"] else "quiet", each["results"]) for each in read]
    else:
        chosen = [script for script in scripts() if not asked.only or any(part in script.name for part in asked.only)]
        results = measure(chosen, asked.parallel, asked.loaded, asked.patience, asked.forked, asked.json)
        runs = [("loaded" if asked.loaded else "quiet", results)]
    print(_table.machine())
    print(table(runs))
    if asked.table is not None:
        text = asked.table.read_text()
        pattern = re.compile(f"{re.escape(BETWEEN[0])}.*{re.escape(BETWEEN[1])}", re.DOTALL)
        asked.table.write_text(pattern.sub(lambda _: f"{BETWEEN[0]}\n{table(runs)}\n{BETWEEN[1]}", text))


if __name__ == "__main__":
    main()
