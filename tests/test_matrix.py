"""scripts/matrix.py: the table of docs/torch.md."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("matrix_script", ROOT / "scripts" / "matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "matrix_script", module)
    spec.loader.exec_module(module)
    return module


def test_a_result_replaces_its_own_line_only(matrix: ModuleType) -> None:
    lines = "| 3.12 | 2.11.0 | yes | 2026-01-01 |\n| 3.11 | 2.9.1 | yes | 2026-01-01 |"
    page = f"before {matrix.BEGIN}\n\n{lines}\n{matrix.END} after"
    result = matrix.Result("3.11", "2.9.1", dict.fromkeys(matrix.SMOKE, "yes"), off="nothing much")
    assert result.passed
    written = matrix.table_with(page, [result], "2026-02-02")
    assert matrix.pairs_of(written) == [("3.11", "2.9.1"), ("3.12", "2.11.0")]
    assert "| 3.12 | 2.11.0 | yes | 2026-01-01 |" in written
    assert "| 3.11 | 2.9.1 | yes | nothing much | 2026-02-02 |" in written
    assert written.startswith("before ")
    assert written.endswith(" after")


def test_a_failure_and_what_did_not_run_are_no_success(matrix: ModuleType) -> None:
    cases = [("tests/a.py::test_x", ""), ("tests/a.py::test_y[1]", "failed"), ("tests/b.py::test_z", "skipped")]
    assert matrix._outcome(cases, ["tests/a.py::test_x"]) == "yes"
    assert matrix._outcome(cases, ["tests/a.py"]) == "1 of 2 failed"
    assert matrix._outcome(cases, ["tests/b.py"]) == "1 of 1 skipped"
    assert matrix._outcome(cases, ["tests/c.py"]) == "not run"
    failed = matrix.Result("3.11", "2.9.1", dict.fromkeys(matrix.SMOKE, "yes") | {"hang": "1 of 2 failed"})
    assert not failed.passed
    assert failed.line("2026-02-02") == "| 3.11 | 2.9.1 | hang: 1 of 2 failed |  | 2026-02-02 |"


def test_the_tests_that_it_runs_exist(matrix: ModuleType) -> None:
    for name in (name for names in matrix.SMOKE.values() for name in names):
        file, _, test = name.partition("::")
        assert not test or f"\ndef {test}(" in (ROOT / file).read_text(), name


def test_a_torch_that_cannot_be_downloaded_is_no_failure(
    matrix: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    offline = ["--pip-args=--no-index --find-links=/nowhere", f"--folder={tmp_path}"]
    assert matrix.main(["--first", "2.0:2.99.0", f"{own}:2.99.0", f"{own}:2.98.0", *offline]) == os.EX_TEMPFAIL
    printed = capfd.readouterr().out
    assert "no Python 2.0 here: not run" in printed
    assert "torch 2.99.0 could not be installed" in printed
    assert "2.98.0" not in printed, "only the first pair whose Python is here"
    assert matrix.main(["2.0:2.99.0", *offline]) == 1, "nothing was run"


def test_a_rankwatch_that_cannot_be_installed_is_a_failure(
    matrix: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix.Pair, "_install_torch", lambda *_: None)
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    offline = ["--pip-args=--no-index --find-links=/nowhere", f"--folder={tmp_path}"]
    assert matrix.main([f"{own}:2.99.0", *offline]) == 1
