"""The standby's flags and their environment variables."""

from __future__ import annotations

import pytest

from rankwatch_launcher.cli.flags import prewarm_settings
from rankwatch_launcher.cli.main import build_parser
from rankwatch_launcher.prewarm.pool import PrewarmSettings
from rankwatch_launcher.procfs import GIB


def chosen(*flags: str, **env: str) -> PrewarmSettings | None:
    return prewarm_settings(build_parser().parse_args([*flags, "train.py", "--standby"]), env)


def test_it_is_automatic_unless_it_is_asked_for_or_refused() -> None:
    assert chosen() == PrewarmSettings(2 * GIB, automatic=True)
    assert chosen(RANKWATCH_STANDBY="auto") == PrewarmSettings(2 * GIB, automatic=True)
    assert chosen("--standby-memory", "4") == PrewarmSettings(4 * GIB, automatic=True)
    assert chosen("--no-standby", RANKWATCH_STANDBY="1") is None
    assert chosen(RANKWATCH_STANDBY="0") is None


def test_a_bare_flag_does_not_take_the_script() -> None:
    assert chosen("--standby") == PrewarmSettings(2 * GIB)
    assert build_parser().parse_args(["--standby", "train.py"]).training_script == "train.py"


def test_flags_beat_the_environment() -> None:
    env = {"RANKWATCH_STANDBY": "yes", "RANKWATCH_STANDBY_MEMORY": "3"}
    assert chosen(**env) == PrewarmSettings(3 * GIB)
    assert chosen("--standby-memory", "0.5", **env) == PrewarmSettings(GIB // 2)


@pytest.mark.parametrize(
    ("name", "value", "printed"),
    [
        ("RANKWATCH_STANDBY", "torch", "must be true or false, not 'torch', or auto"),
        ("RANKWATCH_STANDBY_MEMORY", "lots", "must be a number of GiB, such as 2 or 0.5, not 'lots'"),
        ("RANKWATCH_STANDBY_MEMORY", "0", "must be a number of GiB"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str, printed: str) -> None:
    with pytest.raises(ValueError, match=name) as raised:
        chosen(**{name: value})
    assert printed in str(raised.value)
