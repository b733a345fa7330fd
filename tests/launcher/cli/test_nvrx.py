"""Flags as users of ft_launcher write them: every spelling, what each becomes, and what a mistake is answered."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.cli.test_flags import flags_of, options
from rankwatch_launcher.cli import main, nvrx

# Every flag of ft_launcher 0.4.1 that torchrun does not have.
SPELLINGS = """
--fault-tol-cfg-path --ft-cfg-path --ft-cfg_path --ft-enable-nic-monitor --ft-enable_nic_monitor
--ft-initial-rank-heartbeat-timeout --ft-initial_rank_heartbeat_timeout --ft-link-down-path-template
--ft-link_down_path_template --ft-log-level --ft-log_level --ft-node-health-check-interval
--ft-node_health_check_interval --ft-param-enable-nic-monitor --ft-param-initial_rank_heartbeat_timeout
--ft-param-link-down-path-template --ft-param-log_level --ft-param-node_health_check_interval --ft-param-pci-topo-file
--ft-param-rank_heartbeat_timeout --ft-param-rank_out_of_section_timeout --ft-param-rank_section_timeouts
--ft-param-rank_termination_signal --ft-param-restart_check_interval --ft-param-safety_factor
--ft-param-workload_check_interval --ft-pci-topo-file --ft-pci_topo_file --ft-rank-heartbeat-timeout
--ft-rank-out-of-section-timeout --ft-rank-section-timeouts --ft-rank-termination-signal --ft-rank_heartbeat_timeout
--ft-rank_out_of_section_timeout --ft-rank_section_timeouts --ft-rank_termination_signal --ft-restart-check-interval
--ft-restart-policy --ft-restart_check_interval --ft-restart_policy --ft-safety-factor --ft-safety_factor
--ft-workload-check-interval --ft-workload_check_interval --ft_param_enable_nic_monitor
--ft_param_link_down_path_template --ft_param_pci_topo_file --ignore-missing-fault-tol-cfg --restart-policy
--restart_policy --term-timeout --term_timeout --workers-stop-timeout --workers_stop_timeout
"""

SECTIONS = {"step": 9.0, "load": None, "a": None, "b": None}


def given(*argv: str, env: dict[str, str] | None = None) -> nvrx.Translated:
    return nvrx.from_flags(main.build_parser().parse_args([*argv, "train.py"]), env or {})


def test_every_flag_of_ft_launcher_is_there() -> None:
    assert set(SPELLINGS.split()) <= flags_of(main.build_parser())


def test_the_line_of_megatron_bridge_is_understood() -> None:
    ours, _ = options(
        *("--rdzv_backend=c10d", "--rdzv_endpoint=h:29500", "--nnodes=2", "--nproc-per-node=8"),
        "--ft-param-rank_section_timeouts=setup:600,step:180,checkpointing:420",
        "--ft-param-rank_out_of_section_timeout=300",
    )
    assert ours.policy == {
        "section_timeouts": {"setup": 600.0, "step": 180.0, "checkpointing": 420.0},
        "out_of_section_timeout": 300.0,
    }


@pytest.mark.parametrize(
    ("name", "text", "setting", "value"),
    [
        ("initial-rank-heartbeat-timeout", "600", "initial_heartbeat_timeout", 600.0),
        ("rank-heartbeat-timeout", "45", "heartbeat_timeout", 45.0),
        ("rank-heartbeat-timeout", "none", "heartbeat_timeout", None),
        ("rank-out-of-section-timeout", "30", "out_of_section_timeout", 30.0),
        ("safety-factor", "7", "learned_factor", 7.0),
        ("rank-section-timeouts", "step:9,load:None,a=null,b:", "section_timeouts", SECTIONS),
    ],
)
@pytest.mark.parametrize("prefix", ["--ft-", "--ft-param-"])
@pytest.mark.parametrize("underscores", [False, True])
def test_each_parameter_sets_our_policy_in_each_spelling(
    prefix: str, underscores: bool, name: str, text: str, setting: str, value: Any
) -> None:
    flag = prefix + (name.replace("-", "_") if underscores else name)
    assert options(flag, text)[0].policy == {setting: value}
    assert options(f"{flag}={text}")[0].policy == {setting: value}


@pytest.mark.parametrize("text", ["SIGTERM", "term", "15"])
def test_the_termination_signal_is_an_option_of_ours(text: str) -> None:
    assert options("--ft-rank_termination_signal", text)[0].rank_termination_signal == "SIGTERM"


@pytest.mark.parametrize(("text", "level"), [("DBG", 10), ("info", 20), ("WARN", 30), ("40", 40)])
def test_the_log_level(text: str, level: int) -> None:
    assert given("--ft-log-level", text).log_level == level


def test_our_own_flag_beats_theirs_which_beats_a_variable() -> None:
    env = {"RANKWATCH_HEARTBEAT_TIMEOUT": "10", "RANKWATCH_OUT_OF_SECTION_TIMEOUT": "11", "RANKWATCH_STOP_GRACE": "12"}
    ours, _ = options(
        *("--ft-rank-heartbeat-timeout", "20", "--ft-rank-out-of-section-timeout", "21", "--term-timeout", "22"),
        *("--heartbeat-timeout", "30"),
        env=env,
    )
    assert ours.policy == {"heartbeat_timeout": 30.0, "out_of_section_timeout": 21.0}
    assert ours.stop_grace == 22.0


def test_the_renamed_flags_of_torchrun_are_known_by_their_variables_too() -> None:
    assert given("--workers-stop-timeout", "12.5").shutdown_timeout == 13, "torchrun's own wants whole seconds"
    env = {"PET_TERM_TIMEOUT": "90", "PET_WORKERS_STOP_TIMEOUT": "20"}
    assert (given(env=env).options, given(env=env).shutdown_timeout) == ({"stop_grace": 90.0}, 20)
    with pytest.raises(ValueError, match=r"PET_TERM_TIMEOUT: .* above 0"):
        given(env={"PET_TERM_TIMEOUT": "0"})


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--ft-workload-check-interval", "5", "ranks report once a second"),
        ("--ft-restart-check-interval", "60", "without polling"),
        ("--ft-node-health-check-interval", "5", "--node-timeout"),
        ("--ft-enable-nic-monitor", "true", "network ports"),
        ("--ft_param_pci_topo_file", "topo.xml", "network ports"),
        ("--ft-link-down-path-template", "/sys/{dev_name}", "network ports"),
    ],
)
def test_what_needs_nothing_here_is_accepted_with_the_reason(flag: str, value: str, words: str) -> None:
    (note,) = given(flag, value).notes
    assert words in note
    assert (given(flag, value).policy, given(flag, value).options) == ({}, {})


@pytest.mark.parametrize("flag", ["--ft-restart-policy=any-failed", "--ft-enable-nic-monitor=false"])
def test_what_is_so_anyway_needs_no_word(flag: str) -> None:
    assert given(flag).notes == []


def test_min_healthy_is_not_offered_and_that_is_reported() -> None:
    (note,) = given("--restart-policy", "min-healthy").notes
    assert "min-healthy is not supported" in note
    assert "--spares" in note
