"""The network between a job and its monitor is cut and comes back: real ranks in a network namespace of their own.

The monitor listens on one end of a pair of virtual links, whose other end is all that the job has: nothing beyond this
machine can reach it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.story import assert_blamed
from e2e.training import STEP_LIMIT, Training
from support.monitor_process import Api, running_monitor
from support.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

TOKEN = "for-a-test"
CUT = 30.0


class Link:
    """A network namespace and the pair of links to it."""

    def __init__(self) -> None:
        number = os.getpid()
        self.name, self.here, self.there = f"rw{number}", f"rwh{number}", f"rwt{number}"
        self.address, self.other = "198.18.77.1", "198.18.77.2"

    def up(self) -> None:
        _ip("-n", self.name, "link", "set", self.there, "up")

    def cut(self) -> None:
        """The far end: this one's address, on which the monitor listens, stays."""
        _ip("-n", self.name, "link", "set", self.there, "down")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@pytest.fixture
def link() -> Iterator[Link]:
    if shutil.which("ip") is None:
        pytest.skip("`ip` is missing: apt install iproute2")
    made = Link()
    try:
        _ip("netns", "add", made.name)
    except subprocess.CalledProcessError as error:
        pytest.skip(
            f"no network namespace can be made here (it needs root and the kernel's leave): {error.stderr.strip()}"
        )
    try:
        _ip("link", "add", made.here, "type", "veth", "peer", "name", made.there, "netns", made.name)
        _ip("addr", "add", f"{made.address}/30", "dev", made.here)
        _ip("-n", made.name, "addr", "add", f"{made.other}/30", "dev", made.there)
        _ip("link", "set", made.here, "up")
        _ip("-n", made.name, "link", "set", "lo", "up")
        made.up()
        yield made
    finally:
        # The pair of links goes with the namespace, or with its one end if it was not moved yet.
        _ip("netns", "del", made.name)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", made.here)


@pytest.fixture
def training(tmp_path: Path, link: Link, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    job = Training(tmp_path, "cut-off")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    try:
        yield job
    finally:
        job.close()


def start(training: Training, link: Link, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``rankwatch run`` with two ranks, within the namespace."""
    inside = training.folder / "python-inside"
    inside.write_text(f'#!/bin/sh\nexec ip netns exec {link.name} "{sys.executable}" "$@"\n')
    inside.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(inside))
        command = ["-m", "rankwatch", "run", "--nproc-per-node", "2", "--monitor", url, "--job-id", training.job]
        command += ["--section-timeout", f"step={STEP_LIMIT}", *training.script()]
        training.start(command, RANKWATCH_TOKEN=TOKEN)


def passed(seconds: float) -> None:
    since = time.monotonic()
    wait_for(lambda: time.monotonic() - since >= seconds, "time passes", seconds + 5)


def test_a_cut_raises_no_alarm_and_hides_no_hang(
    training: Training, link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_monitor(tmp_path / "monitor", "--host", link.address, "--token", TOKEN) as monitor:
        training.api = Api(monitor.url, TOKEN)
        start(training, link, monitor.url, monkeypatch)
        training.until_running(2)

        link.cut()
        there = training.checkpoint()
        passed(CUT)
        assert training.checkpoint() > there, "the ranks train on"
        assert training.api.incidents(training.job) == [], "that nothing arrives is no hang"
        link.up()
        seen = training.summary()["iteration"]
        training.until("telemetry comes again without help", lambda: training.summary()["iteration"] > seen + 10)
        assert training.api.incidents(training.job) == []
        assert training.steps("start") == {0: [(1, 0)], 1: [(1, 0)]}, "the ranks were left alone"

        link.cut()
        training.strike("rank=1,kind=hang")
        passed(CUT)
        assert training.api.incidents(training.job) == []
        link.up()
        training.until_running(2, attempt=2)
        incident = training.incident()
        assert_blamed(incident, 1, "behind")
        assert training.finish() == [0]
