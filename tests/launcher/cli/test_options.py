"""The launcher's own options: flags and variables made from one definition, and what a mistake is answered."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import fields

import pytest

from launcher.cli.test_flags import flags_of, options
from rankwatch_launcher.cli import flags, main
from rankwatch_launcher.options import Options


def test_every_option_has_a_flag_and_a_default_that_its_reader_accepts() -> None:
    known = flags_of(main.build_parser())
    options = [field for field in fields(Options) if field.metadata]
    assert options
    for option in options:
        assert f"--{option.name.replace('_', '-')}" in known
        if option.default not in ("", ()) and not isinstance(option.default, bool):
            assert option.metadata["kind"].read_text(str(option.default)) == option.default


def test_flags_set_them() -> None:
    ours, _ = options(
        *("--job-retries", "2", "--spares", "1", "--node-timeout", "3", "--stop-signal", "usr1", "--stop-grace", "40"),
        *("--rank-termination-signal", "TERM", "--outcome", "o.json", "--complete-on-success"),
    )
    assert (ours.job_retries, ours.spares, ours.node_timeout) == (2, 1, 3.0)
    assert (ours.stop_signal, ours.stop_grace, ours.rank_termination_signal) == ("SIGUSR1", 40.0, "SIGTERM")
    assert (ours.outcome, ours.complete_on_success, ours.send_logs) == ("o.json", True, True)
    assert options("--no-send-logs")[0].send_logs is False


def test_variables_set_them_and_flags_beat_those() -> None:
    env = {"RANKWATCH_SPARES": "2", "RANKWATCH_STOP_SIGNAL": "NONE", "RANKWATCH_COMPLETE_ON_SUCCESS": "true"}
    ours, _ = options("--spares", "3", env=env)
    assert (ours.spares, ours.stop_signal, ours.complete_on_success) == (3, "", True)


def own(*argv: str) -> list[str]:
    return flags.before_script(argv, main.add_flags(argparse.ArgumentParser(add_help=False)))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--nproc-per-node 2 --job-retries 1 train.py --job-retries 9", "--nproc-per-node 2 --job-retries 1"),
        ("--nproc_per_node=2 --standalone -m pkg.train --x", "--nproc_per_node=2 --standalone -m"),
        ("--no-monitor -t3 -r 0:1 --job-retries=4 train.py", "--no-monitor -t3 -r 0:1 --job-retries=4"),
        ("--observe-only --no-learn-timeouts train.py", "--observe-only --no-learn-timeouts"),
        ("--ft-param-safety_factor 5 --spares 1 -- train.py --spares 3", "--ft-param-safety_factor 5 --spares 1"),
        ("train.py", ""),
    ],
)
def test_the_script_and_what_is_its_own_are_distinguished_without_torch(argv: str, expected: str) -> None:
    assert own(*argv.split()) == expected.split()


def test_whether_a_flag_has_a_value_is_known_of_each() -> None:
    for action in main.build_parser()._actions:
        for flag in action.option_strings:
            word = str([*action.choices][-1]) if action.nargs == "?" and action.choices else "word"
            assert len(own(flag, word)) == (1 if action.nargs == 0 else 2), flag
            if action.nargs == "?":
                assert own(flag, "train.py") == [flag], "its value may be left out, and the script comes next"


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ((), "on"),
        (("--node-check",), "on"),
        (("--no-node-check",), "off"),
        (("--node-check", "pairs"), "pairs"),
        (("--node-check=off",), "off"),
    ],
)
def test_how_nodes_are_checked(words: tuple[str, ...], mode: str) -> None:
    ours, _ = options(*words, "--check-path", "/a:/b", "--check-path", "/c")
    assert (ours.node_check, ours.check_path) == (mode, ("/a", "/b", "/c"))
    assert options(env={"RANKWATCH_NODE_CHECK": "pairs", "RANKWATCH_CHECK_PATH": "/a:/b"})[0].check_path == ("/a", "/b")
    assert options(env={"RANKWATCH_NODE_CHECK": "0"})[0].node_check == "off"


def test_labels_of_the_topology_keep_their_order() -> None:
    told, _ = options("--topology-label", "rack=r1,switch=s2", "--topology-label", "pod=3")
    assert told.topology_label == ("rack=r1", "switch=s2", "pod=3")
    assert options(env={"RANKWATCH_TOPOLOGY_LABEL": "rack=r1, switch=s2"})[0].topology_label == ("rack=r1", "switch=s2")
    with pytest.raises(SystemExit):
        options("--topology-label", "rack")


def test_without_torch_a_sentence_states_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from rankwatch.cli.main import main; sys.exit(main(['run', 'x.py']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "'run' needs torch, which is not installed: pip install 'rankwatch[torch]'" in done.stderr


def test_the_command_line_is_looked_at_without_torch() -> None:
    code = (
        "import sys; from rankwatch_launcher.cli.main import retry_plan; "
        "print(retry_plan(sys.argv[1:], {}), 'torch' in sys.modules)"
    )
    argv = ["--nproc-per-node", "2", "--job-retries", "4", "--max-no-progress", "5", "train.py", "--job-retries", "9"]
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
    assert done.stdout == "RetryPlan(budget=4, no_progress=5, flag='', outcome='') False\n"


@pytest.mark.parametrize(
    ("line", "script", "arguments"),
    [
        ("--nproc-per-node 1 train.py --workers 1 --max 3", "train.py", ["--workers", "1", "--max", "3"]),
        ("-m json.tool --help", "json.tool", ["--help"]),
        ("--nproc-per-node=1 -- train.py -- --x", "train.py", ["--", "--x"]),
        ("--standalone --standby train.py --standalone", "train.py", ["--standalone"]),
        ("train.py", "train.py", []),
    ],
)
def test_a_scripts_arguments_are_never_taken_for_flags(line: str, script: str, arguments: list[str]) -> None:
    parser = main.build_parser()
    args = parser.parse_args(main.split(line.split(), parser))
    assert (args.training_script, args.training_script_args) == (script, arguments)


def test_the_help_begins_with_rankwatchs_own_groups_and_lists_choices() -> None:
    parser = main.build_parser()
    titles = [group.title for group in parser._action_groups]
    assert titles.index("Job and monitor") == 0
    assert titles.index("Stragglers and profiling") < titles.index("Flags of torchrun")
    text = parser.format_help()
    assert "{log,capture,restart" in text
    assert not re.search(r"\bdocs/[\w-]+\.md", text)
    shown = [option for action in parser._actions for option in action.option_strings]
    assert {f"--{name.replace('_', '-')}" for group in flags.policy_groups() for name in group} - {
        "--section-timeouts"
    } <= {*shown}


@pytest.mark.parametrize(("flag", "level"), [("--quiet", "WARNING"), ("--verbose", "DEBUG"), ("--auto", None)])
def test_how_much_is_logged_can_be_chosen(flag: str, level: str | None) -> None:
    assert main.build_parser().parse_args([flag, "train.py"]).log_level == level


@pytest.mark.parametrize("given", ["a/b", "..", "team/run", "a\nb"])
def test_an_id_that_cannot_be_one_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"--job-id .* cannot be the id of a job"):
        options("--job-id", given)
    with pytest.raises(ValueError, match=r"RANKWATCH_JOB_ID .* cannot be the id of a job"):
        options(env={"RANKWATCH_JOB_ID": given})


def test_any_rendezvous_id_of_torchrun_is_accepted() -> None:
    made = {options("--rdzv-id", given)[0].job_id for given in ("team/run", "team_run", "..", "team/run")}
    assert len(made) == 3
    assert "team_run" in made
    assert not [job_id for job_id in made if "/" in job_id or job_id == ".."]
