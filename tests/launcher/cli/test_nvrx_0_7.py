"""Each parameter of nvidia-resiliency-ext 0.7.0's ft_launcher and of its configuration: none is refused.

The names are data, written down from the release: flags in the spellings that it has, keys of FaultToleranceConfig.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import pytest

from launcher.cli.test_flags import flags_of, options
from rankwatch_launcher.cli import main, nvrx
from rankwatch_launcher.cli.flags import before_script

SWITCHES = ("--ft-ignore-missing-cfg",)
FLAGS = """
--ft-attribution-analysis-backend --ft-attribution-endpoint --ft-attribution-export-url
--ft-attribution-llm-api-key-file --ft-attribution-llm-base-url --ft-attribution-llm-model --ft-attribution-log-level
--ft-attribution-startup-timeout --ft-attribution-stop-action --ft-cfg-path --ft-cfg_path
--ft-check-remaining-processes --ft-check_remaining_processes --ft-checkpoint-iteration-file
--ft-checkpoint_iteration_file --ft-cycle-info-dir --ft-cycle-info-job-id --ft-enable-dist-storage-healthcheck
--ft-enable-log-server --ft-enable-nic-healthcheck --ft-enable-nic-monitor --ft-enable_nic_healthcheck
--ft-enable_nic_monitor --ft-gpu-memory-poll-interval --ft-gpu-memory-reclaim-timeout --ft-gpu-memory-tolerance-mb
--ft-gpu_memory_poll_interval --ft-gpu_memory_reclaim_timeout --ft-gpu_memory_tolerance_mb --ft-ignore-missing-cfg
--ft-initial-rank-heartbeat-timeout --ft-initial_rank_heartbeat_timeout --ft-install-exception-hook
--ft-install_exception_hook --ft-link-down-path-template --ft-link-state-path-template --ft-link_down_path_template
--ft-link_state_path_template --ft-log-aggregator-count --ft-log-leaf-max-queue-chunks --ft-log-level
--ft-log-server-graceful-shutdown-timeout --ft-log-server-log-prefix --ft-log-server-port --ft-log_level
--ft-max-no-progress-cycles --ft-max_no_progress_cycles --ft-min-progress-iterations --ft-min_progress_iterations
--ft-no-restart-exit-code --ft-node-health-check-endpoint --ft-node-health-check-interval
--ft-node_health_check_endpoint --ft-node_health_check_interval --ft-numa-bind-strict --ft-numa_bind_strict
--ft-nvrx-logfile --ft-pci-topo-file --ft-pci_topo_file --ft-per-cycle-applog-prefix --ft-rank-heartbeat-timeout
--ft-rank-out-of-section-timeout --ft-rank-section-timeouts --ft-rank-termination-signal --ft-rank_heartbeat_timeout
--ft-rank_out_of_section_timeout --ft-rank_section_timeouts --ft-rank_termination_signal --ft-rdzv-impl --ft-rdzv_impl
--ft-restart-check-interval --ft-restart-policy --ft-restart_check_interval --ft-restart_policy --ft-safety-factor
--ft-safety_factor --ft-segment --ft-segment-health-check-dir --ft-skip-section-response --ft-skip_section_response
--ft-storage-health-check-path --ft-workload-check-interval --ft-workload_check_interval
--ft_attribution_analysis_backend --ft_attribution_endpoint --ft_attribution_export_url
--ft_attribution_llm_api_key_file --ft_attribution_llm_base_url --ft_attribution_llm_model --ft_attribution_log_level
--ft_attribution_startup_timeout --ft_attribution_stop_action --ft_cycle_info_dir --ft_cycle_info_job_id
--ft_enable_dist_storage_healthcheck --ft_enable_log_server --ft_log_aggregator_count --ft_log_leaf_max_queue_chunks
--ft_log_server_graceful_shutdown_timeout --ft_log_server_log_prefix --ft_log_server_port --ft_no_restart_exit_code
--ft_nvrx_logfile --ft_per_cycle_applog_prefix --ft_segment --ft_segment_health_check_dir
--ft_storage_health_check_path --term-timeout --term_timeout --workers-stop-timeout --workers_stop_timeout
"""
KEYS = """
workload_check_interval initial_rank_heartbeat_timeout rank_heartbeat_timeout rank_section_timeouts
rank_out_of_section_timeout node_health_check_interval safety_factor rank_termination_signal log_level
restart_check_interval enable_nic_monitor enable_nic_healthcheck enable_dist_storage_healthcheck
storage_healthcheck_path pci_topo_file link_down_path_template link_state_path_template skip_section_response segment
numa_bind_strict gpu_memory_reclaim_timeout gpu_memory_tolerance_mb gpu_memory_poll_interval check_remaining_processes
max_no_progress_cycles min_progress_iterations checkpoint_iteration_file install_exception_hook num_warmup_iterations
attribution_endpoint attribution_stop_action attribution_export_url cycle_info_dir segment_health_check_dir
"""
VALUES = {
    "log_level": "info",
    "rank_termination_signal": "SIGTERM",
    "rank_section_timeouts": "setup:600,step:180",
    "restart_policy": "any-failed",
    "rdzv_impl": "another",
    "install_exception_hook": "true",
    "skip_section_response": "false",
    "attribution_endpoint": "localhost",
    "storage_healthcheck_path": "/data/a,/data/b",
    "cycle_info_dir": "/var/tmp/cycle-info",
}
"""What a name is given; others get a number, which texts and booleans take as well."""


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    return main.build_parser()


def value_of(name: str) -> str:
    return VALUES.get(name, "7")


def name_of(flag: str) -> str:
    name = flag.removeprefix("--").replace("-", "_").removeprefix("ft_")
    return {"storage_health_check_path": "storage_healthcheck_path"}.get(name, name)


def effect(name: str, translated: nvrx.Translated) -> bool:
    """Whether a parameter became one of ours, or is named in a line that states what Rankwatch does instead."""
    ours = translated.policy or translated.options or translated.log_level or translated.no_restart_code
    said = [note for note in translated.notes if note.startswith(name)]
    return bool(ours or translated.shutdown_timeout or name == "restart_policy") != (len(said) == 1)


@pytest.mark.parametrize("flag", [flag for flag in FLAGS.split() if flag not in SWITCHES])
def test_each_flag_is_translated_or_accepted_with_a_reason(flag: str, tmp_path: Path, parser: ArgumentParser) -> None:
    name = name_of(flag)
    if name in ("cfg_path", "fault_tol_cfg_path"):
        (tmp_path / "ft.yaml").write_text("fault_tolerance: {safety_factor: 7}")
        assert options(flag, str(tmp_path / "ft.yaml"))[0].policy == {"learned_factor": 7.0}
        return
    for argv in ([flag, value_of(name)], [f"{flag}={value_of(name)}"]):
        args = parser.parse_args(main.split([*argv, "train.py", flag, "x"], parser))
        assert args.training_script_args == [flag, "x"]
        assert effect(name, nvrx.from_flags(args, {})), flag
        assert before_script([*argv, "train.py"], parser) == argv


@pytest.mark.parametrize("flag", SWITCHES)
def test_switches_take_no_value(flag: str) -> None:
    args = main.build_parser().parse_args([flag, "train.py"])
    assert args.training_script == "train.py"
    assert before_script([flag, "train.py"], main.add_flags(main.Parser("x"))) == [flag], "torch is not imported yet"


@pytest.mark.parametrize("key", KEYS.split())
def test_each_key_of_the_configuration_is_translated_or_accepted_with_a_reason(
    key: str, tmp_path: Path, parser: ArgumentParser
) -> None:
    pytest.importorskip("yaml")
    value = "{setup: 600, step: 180}" if key == "rank_section_timeouts" else value_of(key)
    (tmp_path / "ft.yaml").write_text(f"model: {{}}\nfault_tolerance:\n  {key}: {value}\n")
    args = parser.parse_args(["--ft-cfg-path", str(tmp_path / "ft.yaml"), "train.py"])
    assert effect(key, nvrx.from_file(args, {})), key


def test_all_keys_are_flags_too_in_every_spelling() -> None:
    known = flags_of(main.build_parser())
    assert set(FLAGS.split()) <= known
    assert {f"--ft-param-{key}" for key in KEYS.split()} <= known


@pytest.mark.parametrize("cycles", ["0", "-1"])
def test_no_limit_on_cycles_without_progress(cycles: str) -> None:
    assert options("--ft-max-no-progress-cycles", cycles)[0].policy == {"max_no_progress": 0}


def test_names_with_one_reason_share_a_line() -> None:
    args = main.build_parser().parse_args(["--ft-cycle-info-dir", "/d", "--ft-cycle-info-job-id", "7", "train.py"])
    (line,) = nvrx.from_flags(args, {}).notes
    assert line.startswith("cycle_info_dir, cycle_info_job_id are accepted")


@pytest.mark.parametrize("flag", ["--ft-skip-section-response=true", "--ft-min-progress-iterations=1"])
def test_what_is_so_anyway_needs_no_word(flag: str) -> None:
    assert nvrx.from_flags(main.build_parser().parse_args([flag, "train.py"]), {}).notes == []


@pytest.mark.parametrize("code", ["256", "-1", "none"])
def test_an_exit_code_that_cannot_be_is_explained(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.build_parser().parse_args([f"--ft-no-restart-exit-code={code}", "train.py"])
    assert "--ft-no-restart-exit-code" in capsys.readouterr().err
