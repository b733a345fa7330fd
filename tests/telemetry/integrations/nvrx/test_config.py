from __future__ import annotations

import logging
import signal

import pytest

from rankwatch.contract.limits import RankLimits
from rankwatch.integrations.nvrx import config
from rankwatch.integrations.nvrx.config import FaultToleranceConfig
from rankwatch.recording.recorder import Recorder


def test_what_was_handed_down_is_in_force(recorder: Recorder) -> None:
    limits = RankLimits(sections={"step": 180.0}, heartbeat=300.0, out_of_section=60.0)
    recorder.slots.write_settings(limits.to_settings())
    found = config.effective()
    assert (found.rank_section_timeouts, found.rank_heartbeat_timeout) == ({"step": 180.0}, 300.0)
    assert found.rank_out_of_section_timeout == 60.0


def test_without_a_session_there_are_no_limits() -> None:
    assert config.effective().rank_section_timeouts == {}
    assert config.limits_of_rank() == RankLimits()


def test_names_of_levels_and_signals_are_converted() -> None:
    read = FaultToleranceConfig(log_level="dbg", rank_termination_signal="sigterm")  # type: ignore[arg-type]
    assert (read.log_level, read.rank_termination_signal) == (logging.DEBUG, signal.SIGTERM)
    assert FaultToleranceConfig.from_kwargs(log_level="INFO", rank_termination_signal=15) == FaultToleranceConfig(
        log_level=20, rank_termination_signal=signal.SIGTERM
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("log_level", "loud"), ("log_level", 7), ("rank_termination_signal", "SIGNONE"), ("rank_termination_signal", 999)],
)
def test_an_invalid_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be .*not {value!r}"):
        FaultToleranceConfig.from_kwargs(**{name: value})


def test_keywords_that_are_unknown_are_named_or_ignored() -> None:
    assert FaultToleranceConfig.from_kwargs(safety_factor=3.0, else_=1).safety_factor == 3.0
    with pytest.raises(ValueError, match="unknown settings else_"):
        FaultToleranceConfig.from_kwargs(ignore_not_recognized=False, else_=1)
