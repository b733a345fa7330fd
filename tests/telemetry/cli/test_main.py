from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from rankwatch.cli import main as command

PLUGIN = '''
def greet(argv):
    """Greet whoever is named.

    More words."""
    print("hello", *argv)
    return 3 if argv else None
'''


@pytest.fixture(autouse=True)
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rankwatch_test_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [
        EntryPoint("greet", "rankwatch_test_plugin:greet", command.GROUP),
        EntryPoint("monitor", "a_package_that_is_missing.cli:serve", command.GROUP),
        EntryPoint("run", "another_missing_one.cli:run", command.GROUP),
    ]
    monkeypatch.setattr(command, "entry_points", lambda *, group: points if group == command.GROUP else [])


def test_it_hands_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["greet", "rank", "0"]) == 3
    assert command.main(["greet"]) == 0
    assert capsys.readouterr().out == "hello rank 0\nhello\n"


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_help_has_a_line_for_each_and_imports_none(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    sys.modules.pop("rankwatch_test_plugin", None)
    assert command.main(argv) == 0
    out = capsys.readouterr().out
    assert "  greet    Greet whoever is named.\n" in out
    assert "\n  monitor\n" in out
    assert "rankwatch_test_plugin" not in sys.modules


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rankwatch 0")


def test_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["greeet"]) == 2
    assert "there is no sub-command 'greeet'; known are: greet, monitor, run" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "extra"), [("monitor", "monitor"), ("run", "torch")])
def test_one_whose_extra_is_missing(name: str, extra: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([name]) == 2
    assert f"pip install 'rankwatch[{extra}]'" in capsys.readouterr().err
