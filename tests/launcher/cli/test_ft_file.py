"""ft_launcher's YAML file: found at any depth, beaten by flags, and named when something in it is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.cli.test_flags import options
from rankwatch_launcher.cli import main, nvrx

NESTED = """
model: {layers: 2}
trainer:
  - name: a
  - ft:
      fault_tolerance:
        initial_rank_heartbeat_timeout: 600
        rank_heartbeat_timeout: null
        rank_section_timeouts: {setup: 600, step: 180.5, load: null}
        rank_out_of_section_timeout: 300
        safety_factor: 6
        rank_termination_signal: 15
        log_level: DEBUG
        workload_check_interval: 5.0
        restart_check_interval: null
"""


def given(path: Path | str, *argv: str) -> nvrx.Translated:
    args = main.build_parser().parse_args(["--ft-cfg-path", str(path), *argv, "train.py"])
    return nvrx.from_file(args, {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ft.yaml"
    path.write_text(NESTED)
    return path


def test_a_section_at_any_depth_is_read(file: Path) -> None:
    read = given(file)
    assert read.policy == {
        "initial_heartbeat_timeout": 600.0,
        "heartbeat_timeout": None,
        "section_timeouts": {"setup": 600.0, "step": 180.5, "load": None},
        "out_of_section_timeout": 300.0,
        "learned_factor": 6.0,
    }
    assert (read.options, read.log_level) == ({"rank_termination_signal": "SIGTERM"}, 10)
    assert len(read.notes) == 1
    assert read.notes[0].startswith("workload_check_interval is accepted")


@pytest.mark.parametrize("flag", ["--ft-cfg-path", "--ft-cfg_path", "--fault-tol-cfg-path", "--fault_tol_cfg_path"])
def test_flags_and_variables_beat_the_file(file: Path, flag: str) -> None:
    ours, _ = options(
        *(flag, str(file), "--ft-safety-factor", "8", "--heartbeat-timeout", "40", "--rank-termination-signal", "INT"),
        env={"RANKWATCH_OUT_OF_SECTION_TIMEOUT": "11"},
    )
    assert ours.policy["initial_heartbeat_timeout"] == 600.0
    assert ours.policy["learned_factor"] == 8.0
    assert ours.policy["heartbeat_timeout"] == 40.0
    assert ours.policy["out_of_section_timeout"] == 11.0
    assert ours.rank_termination_signal == "SIGINT"


@pytest.mark.parametrize("variable", ["PET_FT_CFG_PATH", "RANKWATCH_FT_CFG_PATH"])
def test_a_variable_names_the_file_too(file: Path, variable: str) -> None:
    assert options(env={variable: str(file)})[0].policy["learned_factor"] == 6.0


def test_a_key_that_is_not_known_is_named_with_those_that_are(tmp_path: Path) -> None:
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance: {rank_heartbeat_timout: 5, safety_factor: 6}\n")
    read = given(path)
    assert read.policy == {"learned_factor": 6.0}
    (note,) = read.notes
    assert "unknown key 'rank_heartbeat_timout' in fault_tolerance" in note
    assert "rank_heartbeat_timeout" in note


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fault_tolerance: {safety_factor: lots}", r"ft\.yaml: safety_factor: must be a number above 1"),
        ("fault_tolerance: {rank_section_timeouts: {step: -1}}", "the timeout of section 'step' must be"),
        ("fault_tolerance: {rank_section_timeouts: [1]}", "NAME:SECONDS"),
        ("fault_tolerance: [1, 2]", "must be a mapping"),
        ("fault_tolerance: {", "invalid YAML"),
        ("other: 1", "has no section fault_tolerance; --ignore-missing-fault-tol-cfg"),
    ],
)
def test_a_file_that_cannot_be_used_is_explained(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "ft.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        given(path)


@pytest.mark.parametrize("text", ["", "# comments only\n", "fault_tolerance:\n", "model: {fault_tolerance: {}}\n"])
def test_an_empty_file_or_section_has_no_settings(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ft.yaml"
    path.write_text(text)
    assert given(path).policy == {}
    assert options("--ft-cfg-path", str(path))[0].policy == {}


def test_flags_make_up_for_a_file_without_the_section(tmp_path: Path) -> None:
    path = tmp_path / "ft.yaml"
    path.write_text("other: 1\n")
    read = given(path, "--ft-safety-factor", "6")
    assert (read.policy, len(read.notes)) == ({}, 1)


def test_a_missing_file_is_an_error_unless_it_may_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.yaml does not exist"):
        given(tmp_path / "none.yaml")
    read = given(tmp_path / "none.yaml", "--ignore-missing-fault-tol-cfg")
    assert (read.policy, len(read.notes)) == ({}, 1)


def test_without_the_yaml_package_a_sentence_states_what_to_install(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ValueError, match=r"pip install 'rankwatch\[yaml\]'"):
        given(file)
