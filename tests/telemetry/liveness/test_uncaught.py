"""The exception that ends a rank is written into torch's error file, and printed as ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankwatch.liveness import uncaught


def run(body: str, file: Path | None) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != uncaught.ERROR_FILE}
    if file is not None:
        env[uncaught.ERROR_FILE] = str(file)
    code = f"import runpy, os, sys\ninstall = runpy.run_path({uncaught.__file__!r})['install']\ninstall()\n{body}\n"
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def content(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())["message"]
    return found


def test_an_exception_is_written_as_torch_writes_it_and_printed_once(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    ended = run("install()\ndef collate():\n    raise ValueError('bad batch\\nmore')\ncollate()", file)
    assert ended.returncode == 1
    assert ended.stderr.count("ValueError: bad batch") == 1
    found = content(file)
    assert found["message"] == "ValueError: bad batch\nmore"
    assert "in collate" in found["extraInfo"]["py_callstack"]
    assert found["extraInfo"]["timestamp"].isdigit()
    assert found["rankwatch"]["passing"] is False
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("raised", "passing"), [("OSError(5, 'io')", True), ("FileNotFoundError(2, 'no')", False), ("TimeoutError()", True)]
)
def test_errors_of_a_file_system_or_a_network_may_pass(tmp_path: Path, raised: str, passing: bool) -> None:
    file = tmp_path / "error.json"
    run(f"raise {raised}", file)
    assert content(file)["rankwatch"]["passing"] is passing


@pytest.mark.parametrize(
    "body",
    [
        "sys.exit(3)",
        "raise KeyboardInterrupt",
        "if os.fork() == 0:\n    raise ValueError\nos.wait()",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass",
    ],
    ids=["exit", "ctrl-c", "child", "handled"],
)
def test_nothing_else_is_written(tmp_path: Path, body: str) -> None:
    run(body, tmp_path / "error.json")
    assert not [*tmp_path.iterdir()]


def test_a_file_of_the_script_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    file.write_text("mine")
    run("1 / 0", file)
    assert file.read_text() == "mine"


@pytest.mark.parametrize("path", ["gone/error.json", None], ids=["unwritable", "not a rank"])
def test_the_exception_is_printed_in_any_case(tmp_path: Path, path: str | None) -> None:
    bad = "class Bad(Exception):\n    def __str__(self):\n        raise RuntimeError('in str')\n"
    for body in ("1 / 0", f"{bad}raise Bad"):
        ended = run(body, tmp_path / path if path else None)
        assert ended.returncode == 1
        assert "Traceback (most recent call last):" in ended.stderr


def test_a_hook_that_is_there_before_is_still_called(tmp_path: Path) -> None:
    body = "sys.excepthook = lambda *e: print('mine', e[0].__name__)\ninstall()\n1 / 0"
    assert run(body, tmp_path / "error.json").stdout == "mine ZeroDivisionError\n"
    assert content(tmp_path / "error.json")["message"] == "ZeroDivisionError: division by zero"
