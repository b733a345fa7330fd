"""Whatever listens at a monitor's address may send its answers by the byte: nobody waits for them for long."""

from __future__ import annotations

import pytest

from rankwatch.contract.messages import NodeRegistration, RunClaim
from rankwatch.monitor_client import MonitorClient, MonitorError, clock_ahead
from rankwatch_launcher.monitor.link import MonitorLink
from support.dripping import BEGUN, dripping

SECONDS = 0.3


@pytest.mark.parametrize("begun", BEGUN)
def test_a_command_and_the_end_of_a_job_do_not_wait_for_them(begun: bytes) -> None:
    with dripping(begun) as (url, answered):
        with pytest.raises(MonitorError):
            MonitorClient(url, None, SECONDS).read("/jobs")
        assert not answered


def test_the_check_of_a_nodes_clock_does_not_wait_for_them() -> None:
    with dripping(b"HTTP/1.1 200 OK\r\nDate: ") as (url, answered):
        assert clock_ahead(url, SECONDS) is None
        assert not answered


@pytest.mark.parametrize("begun", BEGUN)
def test_a_job_begins_without_them(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwatch_launcher.monitor.link._CONNECT_SECONDS", SECONDS)
    with dripping(begun) as (url, answered):
        link = MonitorLink("j", lambda: NodeRegistration("n", "h", 1, 1))
        assert link.claim(url, "", RunClaim("r", "h", 1)) == ""
        assert not answered
