"""Real scripts, healthy and sick, with nothing configured: what is disturbed, found, how soon, with which rank.

    python benchmarks/trust_suite.py [--only NAME] [--loaded] [--jobs N] [--json FILE] [--table docs/detection.md]

The scripts are those of ``tests/trust``, four gloo ranks each, run by ``rankwatch run`` as a user does; what is to be
restarted by its patience gets a shorter one. ``--loaded`` runs two busy loops beside them. ``--results FILE ...``
makes the table of earlier runs instead. One after the other they take three hours, of which two are waits:
``--jobs 4`` takes one and leaves the times about as they are.
"""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import _table

from support.forked_ranks import run_command
from trust.runner import Result, busy_loops, end_all, run
from trust.scripts import PROVABLE_AFTER, Kind, Script, scripts

SOON = {Kind.PERMANENT: 15.0, Kind.DETERMINISTIC: 15.0, Kind.BY_ITSELF: 10.0, Kind.HELD: 10.0}
"""Seconds from when a fault is provable, within which the first two kinds are confirmed, the others announced."""
BETWEEN = ("<!-- trust: begin -->", "<!-- trust: end -->")


def measure(
    chosen: list[Script], jobs: int, loaded: bool, patience: float, forked: bool, target: Path | None
) -> list[dict[str, Any]]:
    """Run the scripts; print a line for each as it ends."""
    results: list[dict[str, Any]] = []
    command = run_command() if forked else ("-m", "rankwatch", "run")
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    with busy_loops(2 if loaded else 0), ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(run, script, command, patience=patience) for script in chosen]):
            result: Result = done.result()
            results.append(result.to_json())
            verdict = result.verdict.splitlines()[0]
            after = " ".join(f"{_seconds(each):>8}" for each in (result.announced, result.seconds, result.restarted))
            print(
                f"{result.name:34} {result.kind:13} {verdict:34} {after} {result.ranks} {result.sentence}", flush=True
            )
            _table.write(target, loaded=loaded, results=results)
    return sorted(results, key=lambda each: each["name"])


def _stop(*_: object) -> None:
    end_all()
    os._exit(143)


def summary(title: str, results: list[dict[str, Any]]) -> list[str]:
    """One row for each kind of script: what a reader wants to know of a run of all of them."""
    rows = []
    for kind in Kind:
        of_kind = [each for each in results if each["kind"] == kind]
        if not of_kind:
            continue
        right = sum(each["verdict"] == "right" for each in of_kind)
        wrong = sum(each["verdict"].startswith("named rank") for each in of_kind)
        restarts = sum(each["restarts"] for each in of_kind)
        soon = found = restarted = ""
        if kind is not Kind.HEALTHY:
            column = "announced" if kind in (Kind.BY_ITSELF, Kind.HELD) else "seconds"
            seconds = [each[column] for each in of_kind if each[column] is not None]
            late = [each for each in of_kind if each[column] is None or each[column] > _limit(kind, each["name"])]
            soon = f"{len(of_kind) - len(late)} in {SOON[kind]:g} s"
            found = _percentiles(seconds)
            restarted = _percentiles([each["restarted"] for each in of_kind if each["restarted"] is not None])
        suspected = sum(each["suspected"] for each in of_kind) if kind is Kind.HEALTHY else ""
        rows.append(
            f"| {title} | {kind} | {right} of {len(of_kind)} | {restarts} | {suspected} | {soon} | {found} | "
            f"{restarted} | {wrong} |"
        )
    return rows


def _limit(kind: Kind, name: str) -> float:
    return SOON[kind] + PROVABLE_AFTER.get(name.split("/")[-1], 0.0)


def _percentiles(seconds: list[float]) -> str:
    return f"{_table.percentile(seconds, 0.5):.1f} s, {max(seconds):.1f} s" if seconds else ""


def classes(runs: list[tuple[str, list[dict[str, Any]]]]) -> str:
    """One row for each class of scripts and run."""
    lines = [
        "| machine | class | right | restarts | suspicions | soon enough | "
        "confirmed or announced after: p50, longest | restarted after: p50, longest | a wrong rank |",
        "|---|---|---|---|---|---|---|---|---|",
        *(row for title, results in runs for row in summary(title, results)),
    ]
    return "\n".join(lines)


def table(runs: list[tuple[str, list[dict[str, Any]]]]) -> str:
    """One row for each script, with the columns of all runs."""
    lines = [
        "| script | what it does | class | at fault | "
        + " | ".join(f"{title}: announced after | restarted after" for title, _ in runs)
        + " |",
        "|---|---|---|---|" + "---|---|" * len(runs),
    ]
    keys = ("name", "does", "kind", "at_fault")
    scripts_seen = {tuple(str(each[key]) for key in keys) for _, results in runs for each in results}
    for name, does, kind, at_fault in sorted(scripts_seen):
        cells = [next((_cells(each) for each in results if each["name"] == name), " | ") for _, results in runs]
        ranks = {"None": "", "[]": "all alike"}.get(at_fault, at_fault.strip("[]"))
        lines.append(f"| {name} | {does} | {kind} | {ranks} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(result: dict[str, Any]) -> str:
    """What it came to: two cells."""
    verdict = result["verdict"].splitlines()[0][:60]
    announced, restarted = _seconds(result["announced"]), _seconds(result["restarted"])
    if verdict != "right":
        return " ".join(filter(None, (f"**{verdict}**", announced))) + f" | {restarted}"
    if result["at_fault"] is None:
        return "undisturbed" + (f", {result['suspected']} suspected" if result["suspected"] else "") + " | "
    return f"{announced} | {restarted or result['kind']}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def main() -> None:
    """Run the scripts."""
    asked = _table.arguments(
        __doc__,
        only=(list[str](), "scripts whose name has one of these parts"),
        loaded=(False, "two busy loops beside them"),
        jobs=(1, "scripts at once (timings suffer)"),
        patience=(120.0, "seconds after which a fault counts as not found"),
        forked=(False, "fork ranks with torch imported: starts cost less"),
        results=(list[str](), "take these files instead of running"),
        table=(None, "write the classes between the marks of this document"),
    )
    if asked.results:
        read = [json.loads(Path(file).read_text()) for file in asked.results]
        runs = [("loaded" if each["loaded"] else "quiet", each["results"]) for each in read]
    else:
        chosen = [script for script in scripts() if not asked.only or any(part in script.name for part in asked.only)]
        results = measure(chosen, asked.jobs, asked.loaded, asked.patience, asked.forked, asked.json)
        runs = [("loaded" if asked.loaded else "quiet", results)]
    print(_table.machine())
    print(f"{classes(runs)}\n\n{table(runs)}")
    _table.replace_between(asked.table, BETWEEN[0], classes(runs), BETWEEN[1])


if __name__ == "__main__":
    main()
