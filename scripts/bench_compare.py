"""Compares the quick benchmarks of two commits in one run: ``make bench-compare BASE=<commit>``.

    python scripts/bench_compare.py BASE [--rounds N] [--only NAME ...]

The base is checked out below ``build/`` and removed at the end. Each round runs every benchmark of the working tree and
of the base once, one right after the other and in turns first, so that a busy minute affects both alike. A figure's
ratio is the working tree's value divided by the base's in the same round: the table has the median over the rounds and
the interval from the smallest to the largest. A ratio whose interval contains 1 shows no difference.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("telemetry", "monitor", "launcher")
QUICK: Final = {
    "rank_hot_path": (),
    "rank_import": ("--runs", "5"),
    "ingest_decode": (),
    "metrics_page": (),
}
"""Benchmarks of less than a minute, with their arguments."""


def figures(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """All positive numbers of a benchmark's JSON, by their path."""
    for name, value in found.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from figures(value, f"{path} / ")
        elif isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            yield path, float(value)


def ratios(ours: Sequence[Mapping[str, float]], base: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """For each figure that both have in every round: the ratio of each round."""
    shared = set.intersection(*(set(each) for each in (*ours, *base)))
    return {name: [a[name] / b[name] for a, b in zip(ours, base, strict=True)] for name in ours[0] if name in shared}


def table(found: Mapping[str, Sequence[float]]) -> list[str]:
    """One line for each figure: median ratio, interval, and whether it shows a difference."""
    width = max((len(name) for name in found), default=0)
    lines = [f"{'figure':<{width}}   ratio   from     to"]
    for name, each in found.items():
        differs = "" if min(each) <= 1.0 <= max(each) else "  differs"
        lines.append(f"{name:<{width}}  {statistics.median(each):6.3f} {min(each):6.3f} {max(each):6.3f}{differs}")
    return lines


def run(tree: Path, name: str) -> dict[str, float]:
    """Run one benchmark of a tree with the code of that tree; its figures."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(str(tree / part) for part in PRODUCT)}
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "figures.json"
        command = [sys.executable, str(tree / "benchmarks" / f"{name}.py"), *QUICK[name], "--json", str(target)]
        subprocess.run(command, cwd=tree, env=env, check=True, stdout=subprocess.DEVNULL)
        found = json.loads(target.read_text())
    return dict(figures(found.get("figures", found)))


def main() -> None:
    """Check the base out, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each benchmark and commit (default 5)")
    parser.add_argument(
        "--only", nargs="+", choices=list(QUICK), default=list(QUICK), metavar="NAME", help="of " + ", ".join(QUICK)
    )
    given = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{given.base}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if commit.returncode:
        parser.error(f"{given.base!r} is not a commit of this repository; 'git log --oneline' lists them")
    base = ROOT / "build" / f"bench-{commit.stdout[:12]}"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--force", "--detach", str(base), commit.stdout.strip()], check=True)
    try:
        for name in given.only:
            taken: dict[Path, list[dict[str, float]]] = {ROOT: [], base: []}
            for turn in range(given.rounds):
                for tree in (ROOT, base) if turn % 2 else (base, ROOT):
                    taken[tree].append(run(tree, name))
            print(f"\n{name}: working tree / {commit.stdout[:12]}, {given.rounds} rounds")
            print("\n".join(table(ratios(taken[ROOT], taken[base]))), flush=True)
    finally:
        subprocess.run([*git, "remove", "--force", str(base)], check=True)


if __name__ == "__main__":
    main()
