"""The readers of option values: what each accepts, and as what."""

from __future__ import annotations

import pytest

from rankwatch.contract.schema import SECONDS
from rankwatch_launcher import options


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("7", 7), ("007", 7), ("10000", 10_000)])
def test_a_count(text: str, value: int) -> None:
    assert options.COUNT.read_text(text) == value


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", "1e3", "10001", "²", "٣", "many"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(ValueError, match="whole number from 0 to 10000"):
        options.COUNT.read_text(text)


@pytest.mark.parametrize("text", ["0", "-3", "nan", "inf", "soon", ""])
def test_what_is_no_positive_number_of_seconds(text: str) -> None:
    assert SECONDS.read_text("0.5") == 0.5
    with pytest.raises(ValueError):
        SECONDS.read_text(text)


@pytest.mark.parametrize("text", ["SIGTERM", "TERM", "term", " sigterm ", "15"])
def test_a_signal_is_written_in_any_of_the_usual_ways(text: str) -> None:
    assert options.signal_name(text) == "SIGTERM"


@pytest.mark.parametrize("text", ["", "SIG", "0", "99", "¹⁵", "SIG_DFL", "hello"])
def test_what_is_no_signal(text: str) -> None:
    with pytest.raises(ValueError, match="must be a signal"):
        options.signal_name(text)


@pytest.mark.parametrize(("text", "name"), [("none", ""), (" NONE ", ""), ("usr1", "SIGUSR1"), ("2", "SIGINT")])
def test_a_stop_signal_can_be_disabled(text: str, name: str) -> None:
    assert options.stop_signal(text) == name


@pytest.mark.parametrize("text", ["KILL", "9", "SIGSTOP"])
def test_a_stop_signal_can_be_caught(text: str) -> None:
    assert options.signal_name(text) in ("SIGKILL", "SIGSTOP"), "as a signal that ends ranks it is fine"
    with pytest.raises(ValueError, match="cannot be caught"):
        options.stop_signal(text)


@pytest.mark.parametrize(("text", "name"), [("nvrx", "nvrx"), (" NVRX ", "nvrx"), ("none", ""), ("off", ""), ("", "")])
def test_a_package_to_stand_in_for(text: str, name: str) -> None:
    assert options.stand_in(text) == name


def test_no_other_package_is_stood_in_for() -> None:
    with pytest.raises(ValueError, match="can stand in for nvrx"):
        options.stand_in("torch")
