"""CONTRIBUTING's recipe for a detector, followed in a copy of the tree: no other file has to change.

The detector is of no use: it limits the time without a heartbeat once more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("telemetry", "monitor", "launcher")
CORE = "monitor/rankwatch_monitor/core"
DETECTOR = '''
"""Ranks without progress for too long, whatever they do."""

from __future__ import annotations

from rankwatch.contract.enums import VerdictKind
from rankwatch_monitor.core.hang.verdict import NONE, Verdicts, past
from rankwatch_monitor.core.ranks import Bools, RankColumns


def without_progress(columns: RankColumns, limit: float | None, live_R: Bools) -> Verdicts:
    """Those past the limit in seconds; None: there is none."""
    if limit is None:
        return NONE
    elapsed_R = columns.last_update_R - columns.last_heartbeat_R
    return past(VerdictKind.PROGRESS_OVERRUN, elapsed_R, limit, live_R, end=columns.last_update_R)
'''
SCENES = '''
"""A rank without progress, and its silent twin."""

from monitor.core.scene import Scene
from rankwatch.contract.enums import VerdictKind


def test_a_rank_without_progress_is_named() -> None:
    scene = Scene(progress_timeout=5.0).run(10).hang(2).run(7)
    assert (scene.incident.kind, scene.incident.limit) == (VerdictKind.PROGRESS_OVERRUN, 5.0)
    assert scene.blamed == {2: "behind"}
    assert "without progress for" in scene.incident.reason


def test_a_job_that_trains_raises_nothing() -> None:
    assert Scene(progress_timeout=5.0).run(60).quiet()
'''
WORDS = (
    f"{CORE}/words/sentence.py",
    "        case VerdictKind.NEVER_STARTED:\n",
    """        case VerdictKind.PROGRESS_OVERRUN:
            return f"{who} {has} been without progress for {elapsed}, {limit}"
""",
)
STEPS = (
    (
        "telemetry/rankwatch/contract/enums.py",
        '    HEARTBEAT_OVERRUN = "heartbeat_overrun"\n',
        '    PROGRESS_OVERRUN = "progress_overrun"\n',
    ),
    (
        "telemetry/rankwatch/contract/policy.py",
        "    silence_timeout: float | None",
        '    progress_timeout: float | None = setting(None, LIMIT, "limit for the time without progress")\n',
    ),
    (f"{CORE}/hang/limits.py", "    loaded: frozenset[str] = frozenset()\n", "    progress: float | None = None\n"),
    (f"{CORE}/hang/limits.py", "        silence=policy.", "        progress=policy.progress_timeout,\n"),
    (f"{CORE}/hang/detect.py", "\nSEEN_FACTOR", "from rankwatch_monitor.core.hang.progress import without_progress\n"),
    (
        f"{CORE}/hang/detect.py",
        "        _silent(columns, limits, live_R, now",
        "        without_progress(columns, limits.progress, live_R),\n",
    ),
    (
        f"{CORE}/views/digest.py",
        "    VerdictKind.SILENT: (",
        '    VerdictKind.PROGRESS_OVERRUN: (_HANG, "a rank made no progress"),\n',
    ),
)
"""File, text, and what is put in front of it."""


def insert(tree: Path, step: tuple[str, str, str]) -> None:
    file, before, line = step
    text = (tree / file).read_text()
    assert text.count(before) == 1, step
    (tree / file).write_text(text.replace(before, line + before))


def run(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(tree / each) for each in (*PACKAGES, "tests"))
    env = {**os.environ, "PYTHONPATH": path, "MYPY_CACHE_DIR": str(tree / "mypy")}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=tree, env=env, capture_output=True, text=True, timeout=500, check=False
    )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_detector_is_added_by_the_recipe(tmp_path: Path) -> None:
    for name in (*PACKAGES, "tests/monitor", "tests/support"):
        ignored = shutil.ignore_patterns("__pycache__", "node_modules", "web")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / CORE / "hang/progress.py").write_text(DETECTOR.lstrip())
    scenes = tmp_path / "tests/monitor/core/hang/test_progress.py"
    scenes.write_text(SCENES.lstrip())
    for step in STEPS:
        insert(tmp_path, step)
    checked = ("mypy", "-p", "rankwatch_monitor.core")
    wordless = run(tmp_path, *checked)
    assert "sentence.py" in wordless.stdout, wordless.stdout
    assert len(wordless.stdout.splitlines()) == 2, "one error, and its count"
    insert(tmp_path, WORDS)
    found = run(tmp_path, *checked)
    assert found.returncode == 0, found.stdout + found.stderr
    tests = (str(scenes), "tests/monitor/core/hang/test_detect.py", "tests/monitor/core/views/test_digest.py")
    found = run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert found.returncode == 0, found.stdout + found.stderr
