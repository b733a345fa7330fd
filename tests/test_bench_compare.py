"""The comparison of two commits: figures are matched by name and paired by round."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/bench_compare.py"
spec = importlib.util.spec_from_file_location("bench_compare", SCRIPT)
assert spec is not None
assert spec.loader is not None
bench_compare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench_compare)


def test_all_numbers_of_a_benchmark_are_figures_by_their_path() -> None:
    found = {"enter": {"p50": 2.0, "note": "x"}, "own_ms": 3, "heavy": [], "exact": True, "none": 0.0}
    assert dict(bench_compare.figures(found)) == {"enter / p50": 2.0, "own_ms": 3.0}


def test_a_ratio_is_that_of_one_round_and_an_interval_around_1_shows_no_difference() -> None:
    ours = [{"a": 2.0, "b": 1.0, "new": 1.0}, {"a": 4.0, "b": 1.2, "new": 1.0}]
    base = [{"a": 1.0, "b": 1.1}, {"a": 2.0, "b": 1.1}]
    found = bench_compare.ratios(ours, base)
    assert found["a"] == [2.0, 2.0], "the machine was half as fast in the second round, for both"
    assert list(found) == ["a", "b"], "a figure that one of them lacks is left out"
    lines = bench_compare.table(found)
    assert [line.split()[-1] for line in lines[1:]] == ["differs", "1.091"]


def test_each_benchmark_it_runs_exists() -> None:
    for name in bench_compare.QUICK:
        assert (SCRIPT.parents[1] / "benchmarks" / f"{name}.py").is_file()


@pytest.mark.parametrize("base", ["no-such-commit", "HEAD:README.md"])
def test_what_is_no_commit_is_refused_in_words(base: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), base], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"{base!r} is not a commit of this repository" in done.stderr
