"""A script that no rank could run is refused before anything starts; what may run is left alone."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path

import pytest

from rankwatch.contract.enums import NoRestart
from rankwatch_launcher.cli.script import Mistake, mistake

MISSING, BROKEN = NoRestart.SCRIPT_MISSING, NoRestart.SCRIPT_BROKEN


def asked(script: str | Path, *, module: bool = False, no_python: bool = False, python: str = "") -> Mistake | None:
    args = argparse.Namespace(training_script=str(script), module=module, no_python=no_python)
    return mistake(args, {"PYTHON_EXEC": python} if python else {})


def test_a_script_that_does_not_exist_is_refused_and_a_close_one_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    refused = asked(tmp_path / "trian.py")
    assert refused is not None
    assert refused.kind is MISSING
    assert "'train.py'" in refused.what
    assert asked(tmp_path / "nowhere" / "x.py") == (f"there is no script '{tmp_path}/nowhere/x.py'", MISSING)


@pytest.mark.parametrize("source", [b"def f(:\n    pass\n", b"\0", b"x = '", b"\xff = 1\n", b"return 1\n"])
def test_a_script_that_does_not_compile_is_refused_with_its_place(tmp_path: Path, source: bytes) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(source)
    refused = asked(script)
    assert refused is not None
    assert refused.kind is BROKEN
    assert str(script) in refused.what
    assert "\n" not in refused.what
    assert asked(script, python="/opt/other/python") is None


def test_folders_and_archives_run_as_python_runs_them(tmp_path: Path) -> None:
    assert asked(tmp_path) is not None
    (tmp_path / "__main__.py").write_text("print(1)\n")
    assert asked(tmp_path) is None
    archive = tmp_path / "app"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("__main__.py", "print(1)\n")
    assert asked(archive) is None


def test_of_modules_and_programs_it_is_known_whether_they_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").touch()
    assert [asked(name, module=True) is None for name in ("here", "json.tool", "nothing.of_this")] == [
        True,
        True,
        False,
    ]
    assert asked("nothing.of_this", module=True, python="/opt/other/python") is None
    assert [asked(name, no_python=True) is None for name in ("true", "no-such-program")] == [True, False]
