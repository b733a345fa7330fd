"""The command lines of the plugins, and the lines that go into a Slurm script, run by a real bash."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwatch.integrations.nemo_run import commands
from rankwatch.integrations.nemo_run.commands import (
    batch_lines,
    run_arguments,
    signal_option,
    task_arguments,
    whole_number,
)
from rankwatch_launcher.cli.main import build_parser
from rankwatch_launcher.schedulers.slurm import is_launcher
from rankwatch_launcher.schedulers.slurm_batch import build_parser as build_batch_parser
from support.waiting import wait_for

OPTIONS: dict[str, str | bool] = {"--max-restarts": "3", "--heartbeat-timeout": "300", "--calculate-timeouts": True}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["python", "train.py", "--lr", "1"], ["train.py", "--lr", "1"]),
        (["/usr/bin/python3", "-m", "pretrain", "x=1"], ["-m", "pretrain", "x=1"]),
        (["bash", "train.sh", "x"], ["--no-python", "bash", "train.sh", "x"]),
    ],
)
def test_python_is_left_to_the_launcher_and_other_programs_are_run_as_they_are(
    command: list[str], words: list[str]
) -> None:
    assert task_arguments(command) == words


def test_the_command_is_one_that_the_launcher_understands() -> None:
    words = run_arguments(["rankwatch"], 2, 8, ["--rdzv-id", "7"], OPTIONS, ["python", "train.py", "a b"], shell=False)
    assert is_launcher(words)
    args = build_parser().parse_args(words[2:])
    assert (args.nnodes, args.nproc_per_node, args.rdzv_id, args.max_restarts) == ("2", "8", "7", 3)
    assert (args.training_script, args.training_script_args) == ("train.py", ["a b"])


def test_what_a_shell_reads_is_quoted_but_its_variables_are_not() -> None:
    rendezvous = ["--rdzv-endpoint", f"{commands.HEAD_NODE}:29500"]
    words = run_arguments(["rankwatch"], 2, 8, rendezvous, OPTIONS, ["python", "train.py", "a b", "$HOME"], shell=True)
    assert words[-2:] == ["'a b'", "'$HOME'"]
    assert "$$${head_node_ip_var}:29500" in words


@pytest.mark.parametrize("value", [-1, 1.5, "3", True, None])
def test_a_count_that_is_none_is_refused_by_name(value: object) -> None:
    with pytest.raises(ValueError, match="num_in_job_restarts must be a whole number of at least 0, not"):
        whole_number("num_in_job_restarts", value)


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "soon", True])
def test_seconds_that_are_none_are_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match="rank_heartbeat_timeout must be a number of seconds above 0"):
        commands.seconds("rank_heartbeat_timeout", value)


@pytest.mark.parametrize(("value", "word"), [(1800, "1800"), (0.5, "0.5"), (86_400, "86400"), (None, "none")])
def test_seconds_are_written_as_the_launcher_reads_them(value: float | None, word: str) -> None:
    assert commands.seconds("it", value) == word
    args = build_parser().parse_args(["--heartbeat-timeout", word, "train.py"])
    assert [found for name, found in vars(args).items() if name.endswith("heartbeat_timeout")] == [value]


@pytest.mark.parametrize(("before", "seconds"), [(60, "50"), (10, "5"), (120, "110"), (1, "0.5")])
def test_ranks_get_most_of_the_time_before_the_limit(before: int, seconds: str) -> None:
    assert commands.grace(before) == seconds


def test_the_signal_goes_to_the_batch_script_where_that_passes_it_on() -> None:
    assert signal_option(60, batch=True) == "B:TERM@60"
    assert signal_option(60, batch=False) == "TERM@60"


# The lines of a Slurm script -----------------------------------------------------------------------------------------

Script = Callable[[str], Path]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """A batch script that holds our lines and what NeMo-Run's template ends with; programs that print what they get."""
    programs = tmp_path / "bin"
    programs.mkdir()

    def program(name: str, body: str) -> None:
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)

    program(
        "srun", 'echo "srun got: $*"; [[ "$*" == *wait.py* ]] && { sleep 60 & echo $! > step; wait; }; exit ${CODE:-0}'
    )
    program("scancel", 'echo "scancel got: $*"; kill $(cat step)')

    def make(command: str) -> Path:
        if "with rankwatch" in command:
            program("rankwatch", 'echo "rankwatch is $$ and got: $*"')
        lines = batch_lines(["rankwatch"], 2, "a folder", "flag")
        file = tmp_path / "job.sh"
        file.write_text(
            f"#!/bin/bash\nset -ev\nset +e\n{lines}\necho script is $$\n{command}\necho template: exit code $?\n"
        )
        return file

    return make


def start(file: Path, **variables: str) -> subprocess.Popen[str]:
    env = {"PATH": f"{file.parent / 'bin'}:/usr/bin:/bin", "SLURM_JOB_ID": "7", **variables}
    return subprocess.Popen(
        ["bash", str(file)],
        env=env,
        cwd=file.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_the_scripts_process_becomes_the_one_that_runs_the_launchers(script: Script) -> None:
    process = start(script("srun --wait=60 rankwatch run 'train script.py' # with rankwatch"))
    printed = process.communicate(timeout=30)[0]
    assert f"script is {process.pid}" in printed
    word = f"rankwatch is {process.pid} and got: "
    given = next(line for line in printed.splitlines() if line.startswith(word)).removeprefix(word)
    assert given == "slurm batch --job-retries 2 --folder a folder -- srun --wait=60 rankwatch run train script.py"
    assert "template: exit code" not in printed.split(word)[1], "what the template would requeue is decided already"


def test_what_the_script_passes_on_is_understood() -> None:
    lines = batch_lines(["python", "-m", "rankwatch"], 2, "a folder", "flag")
    after = shlex.split(lines.partition("exec ")[2].partition(" -- ")[0])
    args = build_batch_parser().parse_args(after[4:])
    assert (args.job_retries, args.folder) == (2, Path("a folder"))


def test_other_steps_of_the_script_are_run_as_they_stand(script: Script) -> None:
    printed = start(script("srun nvidia-smi # with rankwatch"), CODE="3").communicate(timeout=30)[0]
    assert "srun got: nvidia-smi" in printed
    assert "template: exit code 3" in printed
    assert "slurm batch --job-retries 2" not in printed.partition("script is")[2]


def test_without_rankwatch_on_the_batch_node_the_template_requeues_and_that_is_reported(script: Script) -> None:
    printed = start(script("srun rankwatch run train.py"), CODE="5").communicate(timeout=30)[0]
    assert "srun got: rankwatch run train.py" in printed
    assert "rankwatch is not on the node of the batch script" in printed
    assert "template: exit code 5" in printed


def test_without_rankwatch_on_the_batch_node_the_signal_still_reaches_the_steps(script: Script) -> None:
    file = script("srun rankwatch run wait.py")
    process = start(file)
    try:
        wait_for(lambda: (file.parent / "step").exists() and (file.parent / "step").read_text(), "srun runs")
        process.send_signal(signal.SIGTERM)
        printed = process.communicate(timeout=30)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert "scancel got: --signal=TERM 7" in printed
    assert "template: exit code 0" in printed


def test_without_nemo_run_the_import_states_what_to_install() -> None:
    words = [sys.executable, "-c", "import rankwatch.integrations.nemo_run"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        pytest.skip("NeMo-Run is installed here")
    assert "needs NeMo-Run: pip install 'nemo-run==0.11.1'" in done.stderr
