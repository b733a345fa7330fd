"""``rankwatch completion``: parsers taken from the commands themselves, and each script tried in its own shell."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankwatch.cli import completion_scripts
from rankwatch.cli.completion import commands, completion, described, parser_of
from rankwatch.cli.completion_scripts import Command, Flag, Values
from support.monitor_fixtures import api as api
from support.monitor_fixtures import job as job
from support.monitor_fixtures import monitor as monitor
from support.monitor_process import Api, RunningMonitor, environment
from support.otlp import reports_of_all
from support.pseudo_terminal import seated
from support.waiting import wait_for

KNOWN = (
    Command(
        "look",
        "Look at it: it's [here]",
        (
            Flag(("--at", "-a"), "when: [now]", Values(words=("now", "later"))),
            Flag(("--file",), "a file", Values(files=True)),
            Flag(("--json",), "as JSON"),
        ),
        (Values(jobs=True), Values(words=("first", "second"))),
    ),
    Command("bare"),
    Command(
        "farm", "Farms", below=(Command("batch", "In one go", (Flag(("--mode",), "how", Values(words=("one",))),)),)
    ),
)


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def bash(line: Sequence[str], folder: Path, known: Sequence[Command] = KNOWN) -> list[str]:
    script = folder / "script.bash"
    script.write_text(completion_scripts.bash(known))
    asked = f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _rankwatch; printf "%s\\n" "${{COMPREPLY[@]}}"'
    command = [shell("bash"), "--norc", "-c", asked, "bash", *line]
    env = environment(PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=env, cwd=folder)
    assert done.stderr == ""
    return [each for each in done.stdout.splitlines() if each]


def fish(line: str, folder: Path) -> list[str]:
    script = folder / "script.fish"
    script.write_text(completion_scripts.fish(KNOWN))
    command = [shell("fish"), "--no-config", "-c", f"source {script}; complete -C '{line}'"]
    env = environment(HOME=str(folder), XDG_CONFIG_HOME=str(folder), XDG_DATA_HOME=str(folder))
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=env, cwd=folder)
    return sorted(each.partition("\t")[0] for each in done.stdout.splitlines())


def test_the_parser_is_taken_from_whatever_prints_its_help() -> None:
    def command(argv: Sequence[str]) -> None:
        made = argparse.ArgumentParser(prog="x")
        made.add_argument("--colour", choices=("red", "blue"), help="which one (default: red); or none")
        made.add_argument("--secret", help=argparse.SUPPRESS)
        made.add_argument("job", metavar="JOB")
        made.parse_args(argv)

    made = parser_of(command)
    assert made is not None
    answer = described("x", "X.", made)
    flags = {flag.names[-1]: flag for flag in answer.flags}
    assert flags["--colour"] == Flag(("--colour",), "which one", Values(words=("red", "blue")))
    assert flags["--help"].values is None
    assert "--secret" not in flags
    assert answer.places == (Values(jobs=True),)


def test_commands_that_break_are_completed_by_name_and_help_works_afterwards(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(argv: Sequence[str]) -> None:
        raise RuntimeError(argv)

    assert parser_of(broken) is None
    assert parser_of(lambda argv: None) is None
    argparse.ArgumentParser(prog="still").print_help()
    assert capsys.readouterr().out.startswith("usage: still")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (("rankwatch", "l"), ["look"]),
        (("rankwatch", "look", "--"), ["--at", "--file", "--json"]),
        (("rankwatch", "look", "--at", ""), ["now", "later"]),
        (("rankwatch", "look", "--at", "=", "l"), ["later"]),
        (("rankwatch", "look", "s"), ["second"]),
        (("rankwatch", "farm", ""), ["batch", "--help"]),
        (("rankwatch", "farm", "batch", "--mode", ""), ["one"]),
        (("rankwatch", "nonsense", ""), []),
    ],
)
def test_bash(line: Sequence[str], offered: list[str], tmp_path: Path) -> None:
    assert bash(line, tmp_path) == offered


def test_bash_completes_files(tmp_path: Path) -> None:
    (tmp_path / "run-7.jsonl").touch()
    assert bash(("rankwatch", "look", "--file", "run"), tmp_path) == ["run-7.jsonl"]


def test_an_id_cannot_run_anything(tmp_path: Path) -> None:
    tool = tmp_path / "rankwatch"
    tool.write_text(f"#!/bin/sh\necho '$(touch {tmp_path}/ran)'\necho '`touch {tmp_path}/ran`'\necho plain\n")
    tool.chmod(0o755)
    script = tmp_path / "script.bash"
    script.write_text(completion_scripts.bash(KNOWN))
    asked = (
        f'source {script}; COMP_WORDS=(rankwatch look ""); COMP_CWORD=2; _rankwatch; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        [shell("bash"), "--norc", "-c", asked], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert "plain" in done.stdout.splitlines()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rankwatch lo", ["look"]),
        ("rankwatch look --a", ["--at"]),
        ("rankwatch look --at ", ["later", "now"]),
        ("rankwatch farm batch --mode ", ["one"]),
        ("rankwatch farm ba", ["batch"]),
    ],
)
def test_fish(line: str, offered: list[str], tmp_path: Path) -> None:
    assert fish(line, tmp_path) == offered


def test_zsh(tmp_path: Path) -> None:
    (tmp_path / "_rankwatch").write_text(completion_scripts.zsh(KNOWN))
    subprocess.run([shell("zsh"), "-n", str(tmp_path / "_rankwatch")], check=True, timeout=60)
    env = environment(TERM="dumb", ZDOTDIR=str(tmp_path), HOME=str(tmp_path))
    with seated([shell("zsh"), "-f", "-i"], env, cwd=tmp_path) as seat:
        seat.press(f"PS1='READY> '; fpath=({tmp_path} $fpath); autoload -U compinit; compinit -u -D; echo DO''NE\n")
        seat.until("DONE")
        for typed, completed in (
            ("lo\t", "look "),
            ("look --j\t", "look --json "),
            ("look --at la\t", "look --at later "),
            ("farm batch --mo\t", "farm batch --mode="),
        ):
            seat.forget()
            # Ctrl-U empties the line.
            seat.press(f"\x15rankwatch {typed}")
            seat.until(f"rankwatch {completed}".rstrip())


def test_the_commands_that_are_installed_have_their_flags() -> None:
    found = {command.name: command for command in commands()}
    flags = {name: {each for flag in command.flags for each in flag.names} for name, command in found.items()}
    assert {"--watch", "--json", "--monitor"} <= flags["status"]
    assert "--database" in flags["monitor"]
    assert "--scores" in flags["report"]
    assert [below.name for below in found["slurm"].below] == ["batch"]
    assert "requeue" in {word for flag in found["slurm"].below[0].flags for word in (flag.values or Values()).words}
    pytest.importorskip("torch")
    assert {"--nproc-per-node", "--section-timeout", "--job-id"} <= flags["run"]
    assert all(command.words for command in found.values()), "each has a line of help"


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_real_script_is_understood_by_its_shell(name: str, tmp_path: Path) -> None:
    script = tmp_path / f"rankwatch.{name}"
    script.write_text(
        {"bash": completion_scripts.bash, "zsh": completion_scripts.zsh, "fish": completion_scripts.fish}[name](
            commands()
        )
    )
    env = environment(HOME=str(tmp_path))
    done = subprocess.run([shell(name), "-n", str(script)], capture_output=True, text=True, timeout=60, env=env)
    assert (done.returncode, done.stderr) == (0, "")


def test_ids_of_jobs(
    monitor: RunningMonitor,
    api: Api,
    job: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    api.report(*reports_of_all(job, 1))
    monkeypatch.setenv("RANKWATCH_MONITOR", monitor.url)

    def ids() -> list[str]:
        assert completion(["--jobs"]) == 0
        return capsys.readouterr().out.splitlines()

    wait_for(lambda: job in ids(), "the monitor answers within the second that Tab waits")
    monkeypatch.setenv("RANKWATCH_MONITOR", "http://127.0.0.1:9")
    assert completion(["--jobs"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_shell_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        completion([])
    assert ended.value.code == 2
    assert "give bash, zsh or fish" in capsys.readouterr().err
