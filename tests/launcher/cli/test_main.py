"""``rankwatch run`` up to the launcher, which records instead of running."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from rankwatch.contract import env as environment
from rankwatch.contract.enums import ConsoleWord
from rankwatch_launcher import retry_policy, torch_compat
from rankwatch_launcher.cli import main
from rankwatch_launcher.job import launcher, supervisor
from rankwatch_launcher.job.closing_summary import Closing
from rankwatch_launcher.job.supervisor import RetryPlan, Supervision
from rankwatch_launcher.log import logger
from rankwatch_launcher.outcome import FAILED, FINISHED, OUTCOME_VARIABLE, PREEMPTED, Outcome


class Recorded:
    """Launchers that were made, and how the next one ends."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, Any, str, tuple[str, ...]]] = []
        self.supervised: list[RetryPlan] = []
        self.plain: list[Any] = []
        self.outcome = Outcome(FINISHED, 0)
        self.error: BaseException | None = None

    def launcher(self, options: Any, config: Any, learned_limits: Any) -> Any:
        recorded = self

        class Launcher:
            outcome = recorded.outcome
            summary = Closing(ConsoleWord.FAILED, "the last line", ())

            def run(self, entrypoint: str, arguments: list[str]) -> None:
                recorded.launches.append((options, config, entrypoint, tuple(arguments)))
                if recorded.error is not None:
                    raise recorded.error

        return Launcher()

    def supervise(self, plan: RetryPlan, argv: Any, env: Any) -> int:
        self.supervised.append(plan)
        return 42


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Recorded]:
    """The command line without what it starts, in a clean environment."""
    made = Recorded()
    for name in os.environ:
        if name.startswith(("RANKWATCH_", "PET_", "SLURM_", "TORCHELASTIC", "FAULT_TOL", "KUBERNETES", "JOB_COMPL")):
            monkeypatch.delenv(name)
    for name in (OUTCOME_VARIABLE, environment.FINISHED_FLAG):
        monkeypatch.setenv(name, "")  # so that it is put back as it was
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    monkeypatch.setattr(launcher, "Launcher", made.launcher)
    monkeypatch.setattr(supervisor, "supervise", made.supervise)
    monkeypatch.setattr("torch.distributed.run.run", made.plain.append)
    monkeypatch.setattr(main, "to_stderr", lambda: None)
    level = logger.level
    yield made
    logger.setLevel(level)


def run(*argv: str) -> int:
    return main.run(["--nproc-per-node", "2", *argv])


def test_a_script_is_run_on_every_rank(recorded: Recorded) -> None:
    assert run("--job-id", "mine", "--monitor", "http://m:9560/", "train.py", "--lr", "1") == 0
    ((options, config, _, arguments),) = recorded.launches
    assert (options.job_id, options.job_name, options.monitor_url) == ("mine", "train", "http://m:9560")
    assert (config.nproc_per_node, config.max_restarts, config.rdzv_endpoint) == (2, 3, "localhost:0")
    assert arguments == ("-u", "train.py", "--lr", "1")


def test_the_exit_code_is_the_outcomes(recorded: Recorded) -> None:
    recorded.outcome = Outcome(FAILED, 93, "no progress")
    assert run("train.py") == 93


def test_a_saved_pod_of_an_indexed_job_does_not_complete_its_index(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.outcome = Outcome(PREEMPTED, 0)
    assert run("train.py") == 0
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    assert run("train.py") == 75


def test_failed_ranks_are_printed_as_torch_prints_them_and_the_last_lines_follow(
    recorded: Recorded, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    failure = ProcessFailure(local_rank=1, pid=99, exitcode=3, error_file="/none")
    recorded.error, recorded.outcome = ChildFailedError("train.py", {1: failure}), Outcome(FAILED, 1)
    with caplog.at_level(logging.INFO, logger.name):
        assert run("train.py") == 1
    assert "train.py FAILED" in capsys.readouterr().err
    assert "the last line" in caplog.messages


@pytest.mark.parametrize("argv", [["--job-retries", "2"], ["--job-ret", "2"]])
def test_a_job_with_retries_is_supervised(recorded: Recorded, argv: list[str]) -> None:
    assert run(*argv, "--max-no-progress", "4", "--finished-flag", "flag", "--outcome", "o.json", "train.py") == 42
    assert recorded.supervised == [RetryPlan(2, 4, str(Path("flag").absolute()), "o.json")]
    assert recorded.launches == []


def test_a_supervised_launcher_supervises_nothing_and_shares_its_jobs_id(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "bind_to_supervisor", lambda env: Supervision("abc"))
    assert run("--job-retries", "2", "--job-name", "big", "train.py") == 0
    ((options, *_),) = recorded.launches
    assert (options.job_id, recorded.supervised) == ("big-abc", [])


@pytest.mark.parametrize("retries", [[], ["--job-retries", "2"]])
def test_a_complete_training_starts_nothing(recorded: Recorded, retries: list[str]) -> None:
    Path("flag").touch()
    assert run(*retries, "--finished-flag", "flag", "train.py") == 0
    assert (recorded.launches, recorded.supervised) == ([], [])


def test_without_a_monitor_it_is_plain_torchrun_with_its_defaults(recorded: Recorded) -> None:
    assert run("--no-monitor", "train.py") == 0
    (args,) = recorded.plain
    assert (args.max_restarts, args.training_script, recorded.launches) == (0, "train.py", [])


@pytest.mark.parametrize("reason", ["torch", "backend"])
def test_what_cannot_be_monitored_is_run_plainly_with_a_warning(
    recorded: Recorded, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    argv = ["--nnodes", "2", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "h:1"] if reason == "backend" else []
    if reason == "torch":
        monkeypatch.setattr(torch_compat, "complaint", lambda: "torch lacks a method")
    with caplog.at_level(logging.WARNING, logger.name):
        assert run(*argv, "train.py") == 0
    assert len(recorded.plain) == 1
    assert any("running plain torchrun" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("argv", "env"),
    [
        (["--job-id", "a/b"], {}),
        ([], {"RANKWATCH_JOB_ID": "a/b"}),
        ([], {"RANKWATCH_MAX_RESTARTS": "-1"}),
        ([], {"RANKWATCH_SPARES": "x"}),
        (["--inject", "rank=9,step=1,kind=hang"], {}),
        (["--monitor", "m:9560"], {}),
    ],
)
def test_a_mistake_is_exit_code_2_and_starts_nothing(
    recorded: Recorded, argv: list[str], env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        run(*argv, "train.py")
    assert ended.value.code == 2
    assert (recorded.launches, recorded.plain) == ([], [])


@pytest.mark.parametrize(("flag", "level"), [("--quiet", logging.WARNING), ("--verbose", logging.DEBUG)])
def test_how_much_is_logged(recorded: Recorded, flag: str, level: int) -> None:
    run(flag, "train.py")
    assert logger.level == level


def test_the_ranks_inherit_the_finished_flag_and_not_the_supervisors_outcome(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTCOME_VARIABLE, "theirs.json")
    run("--finished-flag", "flag", "train.py")
    assert os.environ[environment.FINISHED_FLAG] == str(Path("flag").absolute())
    assert OUTCOME_VARIABLE not in os.environ


def test_help_never_reaches_a_supervisor(recorded: Recorded) -> None:
    assert main.help_flags(["--job-retries", "2", "--help"]) is False
    assert run("--job-retries", "2", "--help") == 0
    assert recorded.supervised == []
    assert main.retry_plan(["--job-retries", "0", "train.py"], {}) is None
    assert main.retry_plan(["train.py", "--job-retries", "2"], {}) is None
    assert main.retry_plan(["train.py"], {"RANKWATCH_JOB_RETRIES": "3"}) == RetryPlan(3, main.Policy().max_no_progress)


def test_the_help_is_one_screen_and_the_whole_of_it_has_torchruns_flags_under_a_heading(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--help") == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= 40
    known = {flag for action in main.build_parser()._actions for flag in action.option_strings}
    assert {row.split()[0] for row in short.splitlines() if row.startswith("  --")} <= known
    assert len(main.MOST_USED) == 12
    assert run("--help-all") == 0
    whole = capsys.readouterr().out
    assert whole.index("--section-timeout") < whole.index("Flags of torchrun") < whole.index("--rdzv-id")
    assert recorded.launches == []


def test_a_flag_that_is_not_known_is_refused_with_the_one_that_was_meant(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, meant in (
        (["--section-timout", "step=5", "train.py"], "--section-timeout"),
        (["--on-hang", "restrat", "train.py"], "restart"),
        (["--inject", "rank=1,step=3,kind=hagn", "train.py"], "hang"),
        (["--inject", "rnak=1,step=3,kind=hang", "train.py"], "rank"),
    ):
        with pytest.raises(SystemExit) as ended:
            run(*words)
        assert ended.value.code == 2
        assert f"did you mean {meant!r}? 'rankwatch run --help'" in capsys.readouterr().err
    assert recorded.launches == []


def test_a_script_that_cannot_run_starts_nothing_and_is_not_retried(
    recorded: Recorded, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("--outcome", str(tmp_path / "o.json"), "nothing.py") == 1
    assert run("--no-monitor", "nothing.py") == 1
    assert (recorded.launches, recorded.plain) == ([], [])
    assert "nothing.py" in capsys.readouterr().err
    outcome = Outcome.read(tmp_path / "o.json")
    assert outcome is not None
    verdict = retry_policy.after(outcome, 1, False, 0, 5)
    assert isinstance(verdict, retry_policy.GiveUp)
    assert verdict.code == 1
