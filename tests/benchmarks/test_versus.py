"""The side by side with nvidia-resiliency-ext: our half of it runs with real processes, and its arithmetic is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "versus")]

import _recovery_run  # noqa: E402 - the benchmarks are scripts, not a package
import _table  # noqa: E402
import document  # noqa: E402
import environment  # noqa: E402
import memory  # noqa: E402
import reports  # noqa: E402
import run  # noqa: E402
import side_by_side  # noqa: E402
from memory import BESIDE, LAUNCHER, MONITOR, RANK, Footprint  # noqa: E402

RUN = [sys.executable, str(BENCHMARKS / "versus" / "run.py")]
INHERITED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.mark.long
def test_our_side_is_measured_when_the_other_one_is_left_out(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    sizes = ["--ranks", "1", "--rounds", "1", "--batches", "20", "--stop", "0.5"]
    done = subprocess.run(
        [*RUN, "--nvrx", "none", "--parts", "calls", *sizes, "--json", str(target)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={name: value for name, value in os.environ.items() if name not in INHERITED},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reported = json.loads(target.read_text())
    assert "left out" in reported["peer"]
    rows = reported["figures"]["calls"]
    assert rows["section p50, us"]["rankwatch"] > 0
    assert rows["monitor stopped: processes"] == {"rankwatch": 1}
    assert rows["monitor stopped: calls that raised"] == {"rankwatch": 0}
    assert rows["monitor killed: calls that raised"] == {"rankwatch": 0}
    assert rows["monitor killed: watched again"] == {"rankwatch": True}


def test_a_part_that_there_is_not_is_named() -> None:
    done = subprocess.run([*RUN, "--parts", "speed"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "there is no part 'speed': --parts takes some of calls,memory,reports,recovery" in done.stderr


def test_a_place_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    peer = environment.peer(str(tmp_path), tmp_path, [])
    assert peer.python is None
    assert "is no virtual environment" in peer.words
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_environment_without_it_is_explained(tmp_path: Path) -> None:
    peer = environment.peer(sys.prefix, tmp_path, [])
    assert peer.python is None
    assert "cannot import nvidia-resiliency-ext" in peer.words
    assert "--nvrx" in peer.words


@pytest.mark.long
def test_an_environment_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    nowhere = ["--no-index", "--find-links", str(tmp_path)]
    peer = environment.peer("", tmp_path, nowhere)
    assert peer.python is None
    assert "cannot be installed here" in peer.words
    assert "--nvrx" in peer.words


def test_calls_are_reported_less_the_empty_one() -> None:
    wall = {"empty": [100.0, 100.0], "section": [1100.0, 2100.0], "heartbeat": [300.0, 300.0]}
    figures = side_by_side.calls([{"wall": wall, "cpu": {"empty": 50.0, "section": 1050.0, "heartbeat": 250.0}}])
    assert figures["section p50, us"] == pytest.approx(1.5)
    assert figures["section p99, us"] == pytest.approx(2.0)
    assert figures["heartbeat CPU of the rank, us"] == pytest.approx(0.2)


def test_memory_is_that_of_the_process() -> None:
    _, _, before = memory.memory_of(os.getpid())
    held = os.urandom(64 << 20)
    rss, pss, private = memory.memory_of(os.getpid())
    assert 60 < private - before < 70
    assert rss >= pss >= private
    assert len(held) == 64 << 20


def test_what_is_added_is_counted_for_a_rank_and_for_a_node() -> None:
    def run(*processes: tuple[str, float]) -> list[list[Footprint]]:
        return [[Footprint(role, role, size, size / 2, size / 4) for role, size in processes]]

    rows = memory.rows(
        {
            memory.TORCHRUN: run((LAUNCHER, 100.0), (RANK, 200.0), (RANK, 200.0)),
            "rankwatch": run((LAUNCHER, 110.0), (BESIDE, 12.0), (MONITOR, 90.0), (RANK, 208.0), (RANK, 208.0)),
        }
    )
    assert rows["+ rankwatch: a rank"] == {"processes": 0, "rss": 8.0, "pss": 4.0, "private": 2.0}
    assert rows["+ rankwatch: a node"] == {"processes": 1, "rss": 22.0, "pss": 11.0, "private": 5.5}
    assert rows["rankwatch: monitor"]["rss"] == 90.0


def test_the_monitor_makes_the_report_without_training() -> None:
    figures = reports.ours(ranks=8, rounds=2)
    assert figures["report, ms"] > 0
    assert figures["training waits, ms"] == 0


def test_the_figures_of_a_run_replace_those_in_the_document(tmp_path: Path) -> None:
    target = tmp_path / "versus.md"
    target.write_text(f"# Title\n\n{document.BEGIN}\n\nold\n\n{document.END}\n\nthe rest\n")
    rows = {
        "section p50, us": {"rankwatch": 0.951, "nvrx": 509.4, "times": 535.6},
        "monitor killed: calls that raised": {"rankwatch": 0, "nvrx": 4085},
        "monitor killed: said": {"rankwatch": "", "nvrx": "BrokenPipeError"},
        "monitor killed: watched again": {"rankwatch": True, "nvrx": False},
        "lost": {"rankwatch": float("nan")},
    }
    reported = {
        "machine": "2 x CPU",
        "peer": "NVRx",
        "command": "run",
        "figures": {"calls": rows},
        "failed": {"memory": "no"},
    }
    _table.replace_between(target, document.BEGIN, document.figures(reported, "2026-11-25"), document.END)
    text = target.read_text()
    assert text.startswith("# Title\n")
    assert text.endswith("the rest\n")
    assert "old" not in text
    assert "| section p50, us | 0.95 | 509 | 536 |" in text
    assert "| monitor killed: calls that raised | 0 | 4,085 |  |" in text
    assert "| monitor killed: watched again | yes | no |  |" in text
    assert "BrokenPipeError" not in text
    assert "nan" not in text
    assert "Could not be measured in this run: no" in text


def test_a_document_without_a_place_for_the_figures_is_left_as_it_is(tmp_path: Path) -> None:
    target = tmp_path / "other.md"
    target.write_text("text\n")
    with pytest.raises(ValueError, match="has no place for the figures"):
        _table.replace_between(target, document.BEGIN, "figures", document.END)
    assert target.read_text() == "text\n"


def test_the_document_of_the_repository_has_a_place_for_the_figures() -> None:
    text = (BENCHMARKS.parent / "docs" / "versus.md").read_text()
    assert text.index(document.BEGIN) < text.index(document.END)


def test_every_launcher_that_is_asked_for_is_known() -> None:
    known = {arm.name for arm in _recovery_run.arms("ft_launcher")}
    assert set(run.RECOVERY_ARMS) <= known
    names = [arm.name for arm in memory.arms("/somewhere/ft_launcher")]
    assert names[:3] == [memory.TORCHRUN, "rankwatch", _recovery_run.COLD]
    assert names[-1] == "ft_launcher"
    default = next(arm for arm in memory.arms("") if arm.name == "rankwatch")
    assert not any("standby" in word for word in default.command)
