"""What the loop of an attempt adds to what the core decides."""

from __future__ import annotations

import pytest

from rankwatch.contract import env
from rankwatch_launcher.shell.loop import incidents_command


@pytest.mark.parametrize(
    ("known", "command"),
    [
        ({}, ""),
        ({env.JOB_ID: "job"}, "rankwatch incidents job"),
        ({env.JOB_ID: "job", env.MONITOR_URL: "http://127.0.0.1:15600"}, "rankwatch incidents job"),
        (
            {env.JOB_ID: "a job", env.MONITOR_URL: "http://head:9560"},
            "rankwatch incidents 'a job' --monitor http://head:9560",
        ),
    ],
)
def test_the_command_for_incidents_works_where_it_is_shown(known: dict[str, str], command: str) -> None:
    assert incidents_command(known) == command
