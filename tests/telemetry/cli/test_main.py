from __future__ import annotations

import subprocess
import sys
import tomllib
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


@pytest.mark.parametrize(
    ("name", "then"),
    [
        ("greeet", "; did you mean 'greet'?"),
        ("rnu", "; did you mean 'run'?"),
        ("zzz", "; 'rankwatch --help' lists all"),
    ],
)
def test_an_unknown_one(name: str, then: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([name]) == 2
    assert capsys.readouterr().err == f"rankwatch: there is no sub-command {name!r}{then}\n"


@pytest.mark.parametrize(("name", "extra"), [("monitor", "monitor"), ("run", "torch")])
def test_one_whose_extra_is_missing(name: str, extra: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([name]) == 2
    assert f"pip install 'rankwatch[{extra}]'" in capsys.readouterr().err


def test_help_lists_by_task(capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--help"])
    out = capsys.readouterr().out
    assert out.index("Run a job:") < out.index("  run") < out.index("Other:") < out.index("  greet")


def test_a_missing_package_is_installed_by_an_extra_that_exists() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert {extra for extras in command.EXTRAS.values() for extra in extras.split(",")} <= pyproject["project"][
        "optional-dependencies"
    ].keys()
    assert command.EXTRAS.keys() <= pyproject["project"]["entry-points"][command.GROUP].keys()


@pytest.mark.parametrize(
    ("arguments", "code"), [(["status", "--bogus"], 2), (["status", "--help"], 0), (["run", "--on-hang", "x", "t"], 2)]
)
def test_usage_is_one_line_and_a_closed_pipe_no_error(arguments: list[str], code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rankwatch", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()  # as head does, before anything is written
    assert process.stderr is not None
    with process.stderr as stderr:
        printed = stderr.read()
    # argparse ignores a closed pipe that it writes to itself, as it does when its output is not buffered.
    assert process.wait() in ((code,) if code else (0, command.EXIT_PIPE))
    assert len(printed.splitlines()) == (1 if code else 0), printed
    assert code == 0 or "--help" in printed


def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_run", interrupted)
    assert command.main([]) == command.EXIT_INTERRUPTED


def test_each_sub_command_of_ours_is_listed_under_a_task() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    listed = [name for _, names in command.TASKS for name in names]
    assert sorted(listed) == sorted(pyproject["project"]["entry-points"][command.GROUP])
