"""``rankwatch run --inject``: wrong ones fail before any rank starts, right ones reach the ranks."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankwatch.faults.spec import VARIABLE
from rankwatch.settings import load
from rankwatch_launcher.cli import flags, main

FAULT = "rank=2,step=52,kind=hang"


def parsed(*argv: str) -> argparse.Namespace:
    return main.build_parser().parse_args([*argv, "train.py"])


@pytest.fixture(autouse=True)
def propagated(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test may have switched off the propagation of the launcher's logger."""
    monkeypatch.setattr(flags.logger, "propagate", True)
    caplog.set_level(logging.INFO, logger="rankwatch")


def test_flags_reach_the_ranks_and_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    env: dict[str, str] = {}
    flags.export_faults(parsed("--inject", FAULT, "--inject", "rank=random,delay=9,kind=kill;"), env)
    assert env == {VARIABLE: f"{FAULT}; rank=random,delay=9,kind=kill"}
    assert load(variables=env)[0].inject == env[VARIABLE], "where a rank looks"
    assert [record.getMessage() for record in caplog.records] == [
        "a fault will be injected: hang on rank 2, in step 52, in attempt 1",
        "a fault will be injected: kill on a random rank, 9.0 s after init(), in attempt 1",
    ]


def test_a_flag_goes_before_the_environment_which_is_checked_too(caplog: pytest.LogCaptureFixture) -> None:
    env = {VARIABLE: "rank=0,step=1,kind=stop"}
    flags.export_faults(parsed(), env)
    assert "stop on rank 0" in caplog.text
    flags.export_faults(parsed("--inject", FAULT), env)
    assert env == {VARIABLE: FAULT}
    with pytest.raises(ValueError, match="RANKWATCH_INJECT: fault 'rank=0' lacks kind, step"):
        flags.export_faults(parsed(), {VARIABLE: "rank=0"})


def test_without_requests_nothing_is_done(caplog: pytest.LogCaptureFixture) -> None:
    env: dict[str, str] = {}
    flags.export_faults(parsed(), env)
    assert env == {}
    assert caplog.records == []


def test_a_rank_that_there_cannot_be() -> None:
    env = {VARIABLE: "rank=random,step=1,kind=hang; rank=3,step=1,kind=hang"}
    flags.check_fault_ranks(env, 4)
    with pytest.raises(ValueError, match="into rank 3: ranks go from 0 to 1"):
        flags.check_fault_ranks(env, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--inject", "rank=1,step=2,kind=hagn"), "argument --inject: kind of a fault must be one of hang, gil"),
        (("--inject", ""), "argument --inject: names no fault"),
        (("--inject", "rank=2,step=2,kind=hang", "--nproc-per-node", "2"), "ranks go from 0 to 1"),
        (("--no-monitor", "--inject", "rank=2"), "argument --inject: fault 'rank=2' lacks kind"),
    ],
    ids=["kind", "empty", "rank", "plain"],
)
def test_a_typing_error_fails_before_any_rank_starts(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"open({str(tmp_path / 'started')!r}, 'w')")
    done = subprocess.run(
        [sys.executable, "-m", "rankwatch", "run", *arguments, str(script)],
        env={name: value for name, value in os.environ.items() if name != VARIABLE},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "started").exists()
