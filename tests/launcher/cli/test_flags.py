"""The command line: torchrun's flags, ours, and what the environment adds."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from rankwatch.contract.policy import Policy
from rankwatch_launcher.cli import main
from rankwatch_launcher.monitor.discovery import Options


def options(*argv: str, env: dict[str, str] | None = None) -> tuple[Options, int]:
    args = main.build_parser().parse_args([*argv, "train.py"])
    rendezvous_id = args.rdzv_id
    main.settle_rendezvous(args)
    return main.read_options(args, env or {}, rendezvous_id)


def flags_of(parser: Any) -> set[str]:
    return {flag for action in parser._actions for flag in action.option_strings}


def test_every_flag_of_torchrun_is_there() -> None:
    assert flags_of(get_args_parser()) <= flags_of(main.build_parser())


def test_every_policy_value_has_a_flag() -> None:
    ours = {flag.lstrip("-").replace("-", "_") for flag in flags_of(main.build_parser())}
    assert {f.name for f in fields(Policy)} <= ours


def test_nothing_given_means_nothing_sent_and_three_restarts() -> None:
    ours, restarts = options()
    assert (ours.policy, restarts) == ({}, 3)
    assert (ours.monitor_url, ours.job_id, ours.job_name) == ("", "", "train")


def test_flags_make_the_policy() -> None:
    ours, restarts = options(
        *("--section-timeout", "step=10,load:30", "--section-timeout", "save=60"),
        *("--heartbeat-timeout", "40", "--silence-timeout", "off", "--observe-only", "--on-hang", "capture"),
        *("--max-restarts", "5", "--no-detection"),
    )
    assert ours.policy == {
        "section_timeouts": {"step": 10.0, "load": 30.0, "save": 60.0},
        "heartbeat_timeout": 40.0,
        "silence_timeout": None,
        "observe_only": True,
        "on_hang": "capture",
        "max_restarts": 5,
        "detection": False,
    }
    assert restarts == 5
    Policy().changed(ours.policy)


def test_zero_restarts_is_not_the_default() -> None:
    assert options("--max-restarts", "0")[1] == 0


def test_a_flag_beats_its_variable() -> None:
    env = {"RANKWATCH_HEARTBEAT_TIMEOUT": "50", "RANKWATCH_OBSERVE_ONLY": "true", "RANKWATCH_MAX_RESTARTS": "7"}
    ours, restarts = options("--heartbeat-timeout", "40", env=env)
    assert ours.policy == {"heartbeat_timeout": 40.0, "observe_only": True, "max_restarts": 7}
    assert restarts == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--section-timeout", "step"], "NAME=SECONDS"),
        (["--section-timeout", "step=-1"], "above 0"),
        (["--heartbeat-timeout", "soon"], "number of seconds"),
        (["--on-hang", "explode"], "must be one of"),
        (["--monitor", "localhost:9560"], "http://HOST:9560"),
        (["--capture-deadline", "off"], "cannot be switched off"),
        (["--job-retries", "-1"], "whole number from 0"),
        (["--job-retries", "many"], "whole number from 0 to 10000, not 'many'"),
        (["--spares", "1.5"], "whole number"),
        (["--node-timeout", "0"], "above 0"),
        (["--stop-signal", "SIGKILL"], "cannot be caught"),
        (["--stop-signal", "hello"], "SIGTERM, TERM or 15"),
        (["--rank-termination-signal", "99"], "SIGTERM, TERM or 15"),
        (["--ft-rank-section-timeouts", "step"], "NAME:SECONDS"),
        (["--ft-rank-section-timeouts", "step:-1"], "the timeout of section 'step' must be"),
        (["--ft-rank-section-timeouts", ":5"], "a section's name must be"),
        (["--ft-rank-heartbeat-timeout", "soon"], "number of seconds"),
        (["--ft-safety-factor", "1"], "above 1"),
        (["--ft-rank-termination-signal", "SIGNOPE"], "SIGTERM, TERM or 15"),
        (["--ft-log-level", "loud"], "must be debug, info"),
        (["--ft-log-level", "5"], "10 to 50"),
        (["--ft-restart-policy", "some"], "any-failed or min-healthy"),
    ],
)
def test_a_wrong_value_is_explained(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.build_parser().parse_args([*arguments, "train.py"])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANKWATCH_OBSERVE_ONLY", "maybe"),
        ("RANKWATCH_SILENCE_TIMEOUT", "x"),
        ("RANKWATCH_MAX_RESTARTS", "-1"),
        ("RANKWATCH_SPARES", "x"),
        ("RANKWATCH_STOP_SIGNAL", "KILL"),
        ("RANKWATCH_COMPLETE_ON_SUCCESS", "perhaps"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        options(env={name: value})


@pytest.mark.parametrize(
    ("argv", "env", "job_id"),
    [
        (["--job-id", "mine"], {"SLURM_JOB_ID": "7"}, "mine"),
        ([], {"RANKWATCH_JOB_ID": "given", "SLURM_JOB_ID": "7"}, "given"),
        ([], {"SLURM_JOB_ID": "7"}, "7"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "h:1", "--rdzv-id", "big-run"], {}, "big-run"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "h:1"], {}, ""),
        (["--standalone"], {}, ""),
    ],
)
def test_where_the_job_id_comes_from(argv: list[str], env: dict[str, str], job_id: str) -> None:
    assert options(*argv, env=env)[0].job_id == job_id


def test_the_file_of_learned_timeouts_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.build_parser().parse_args(["train.py"]).ft_state is None
    assert main.build_parser().parse_args(["--ft-state", "ckpt/", "train.py"]).ft_state == "ckpt/"
    with pytest.raises(SystemExit):
        main.build_parser().parse_args(["--help"])  # what `rankwatch run --help-all` prints
    assert "--ft-state FILE" in capsys.readouterr().out


def test_one_node_meets_with_itself_and_several_as_configured() -> None:
    alone = main.build_parser().parse_args(["train.py"])
    main.settle_rendezvous(alone)
    assert (alone.rdzv_backend, alone.rdzv_endpoint) == ("c10d", "localhost:0")
    two = main.build_parser().parse_args(["--nnodes", "2", "--master-addr", "h", "train.py"])
    main.settle_rendezvous(two)
    assert (two.rdzv_backend, two.master_port) == ("static", 29500)


@pytest.mark.parametrize(
    ("argv", "env", "seconds"),
    [
        ([], {}, None),
        ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, 7.0),
        (["--shutdown-timeout", "0"], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, 0.0),
    ],
)
def test_torchruns_shutdown_timeout_counts_where_it_is_given(
    argv: list[str], env: dict[str, str], seconds: float | None
) -> None:
    assert options(*argv, env=env)[0].shutdown_timeout == seconds


@pytest.mark.parametrize("backend", ["c10d", "etcd", "etcd-v2", "zeus"])
def test_one_node_needs_no_rendezvous_that_is_not_rankwatchs_own(backend: str) -> None:
    args = main.build_parser().parse_args(
        ["--rdzv-backend", backend, "--rdzv-id", "r", "--rdzv-conf", "store_type=file,join_timeout=9", "train.py"]
    )
    assert main.settle_rendezvous(args) is None
    assert (args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id) == ("c10d", "localhost:0", "r")
    assert args.rdzv_conf == "join_timeout=9"


@pytest.mark.parametrize(("more", "spares"), [(["--nnodes", "1:2"], False), ([], True)])
def test_several_launchers_meet_by_a_file_and_by_etcd_with_torchrun_alone(
    more: list[str], spares: bool, tmp_path: Path
) -> None:
    flags = ["--rdzv-endpoint", str(tmp_path / "file"), *more]
    file = main.build_parser().parse_args(
        ["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file", *flags, "train.py"]
    )
    assert main.settle_rendezvous(file, spares=spares) is None
    assert (file.rdzv_backend, file.rdzv_endpoint) == ("c10d", str(tmp_path / "file"))
    etcd = main.build_parser().parse_args(["--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "h:1", *more, "train.py"])
    assert "'etcd-v2'" in (main.settle_rendezvous(etcd, spares=spares) or "")


@pytest.mark.parametrize(
    "flags",
    [
        ["--rdzv-conf", "store_type=hash"],
        ["--rdzv-conf", "store_type=file"],
        ["--rdzv-conf", "store_type=file", "--rdzv-endpoint", "/no/such/folder/file"],
    ],
)
def test_a_store_that_cannot_be_is_a_mistake_of_the_command_line(flags: list[str]) -> None:
    args = main.build_parser().parse_args(["--nnodes", "2", "--rdzv-backend", "c10d", *flags, "train.py"])
    with pytest.raises(ValueError, match="store_type"):
        main.settle_rendezvous(args)
