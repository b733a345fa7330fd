"""Nodes measured in groups of two: hosts of their own in network namespaces, one of which is slow or silent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.conftest import wait_for
from support.namespaces import Network, networked

pytestmark = pytest.mark.timeout(360)  # torch is imported eight times

NAMES = ("a", "b", "c", "d")
CODE = "import sys; from rankwatch_launcher.cli.check import check; sys.exit(check(sys.argv[1:]))"
ROUND = 20.0
"""Seconds: this machine may be busy with other tests."""


@pytest.fixture
def network() -> Iterator[Network]:
    yield from networked(*NAMES)


class Nodes:
    """``rankwatch check`` on each host of a network."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, *, only: str = "", code: str = CODE) -> None:
        """``code``: what runs on the host ``only``."""
        for name in NAMES:
            flags = ["--nnodes", "4", "--rdzv-endpoint", f"{self.network.address('a')}:29400", "--node-name", name]
            flags += ["--nproc-per-node", "1", "--round-timeout", f"{ROUND:g}", "--json"]
            command = ["ip", "netns", "exec", self.network.namespace(name)]
            self.running[name] = subprocess.Popen(
                [*command, sys.executable, "-c", code if name == only else CODE, *flags],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "net0", "CUDA_VISIBLE_DEVICES": ""},
                start_new_session=True,
            )

    def result(self, name: str) -> tuple[int, dict[str, Any]]:
        """Exit code and report of one."""
        process = self.running[name]
        out, _ = process.communicate(timeout=240)
        return process.returncode, json.loads(out)

    def children(self, name: str) -> list[int]:
        """The processes of one that measure."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                words = (folder / "cmdline").read_bytes().decode().split("\0")
                if parent == self.running[name].pid and "rankwatch_launcher.checks.pair_child" in words:
                    found.append(int(folder.name))
        return found


@pytest.fixture
def nodes(network: Network) -> Iterator[Nodes]:
    made = Nodes(network)
    yield made
    for name, process in made.running.items():
        for pid in [*made.children(name), process.pid]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if process.stdout is not None and not process.stdout.closed:
            process.communicate()


def faults(body: dict[str, Any]) -> dict[str, str]:
    return {each["node"]: each["fault"]["reason"] for each in body["nodes"] if each["fault"] is not None}


@pytest.fixture
def quota() -> Iterator[Callable[[], str]]:
    """Makes a control group with 10 % of a CPU; returns the file that takes processes."""
    made: list[Path] = []

    def make() -> str:
        name = f"rankwatch-{os.getpid()}"
        for parent, file, text in (
            (Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us", "10000"),
            (Path("/sys/fs/cgroup"), "cpu.max", "10000 100000"),
        ):
            folder = parent / name
            try:
                folder.mkdir()
                made.append(folder)
                (folder / file).write_text(text)
            except OSError:
                continue
            return str(folder / "cgroup.procs")
        pytest.skip("no control group for CPUs can be made here (it needs root)")

    yield make
    for folder in made:
        wait_for(lambda folder=folder: not (folder / "cgroup.procs").read_text(), 60)  # type: ignore[misc]
        folder.rmdir()


def test_a_node_behind_a_slow_link_is_named_by_all(nodes: Nodes) -> None:
    shaped = subprocess.run(
        [
            "tc",
            "-n",
            nodes.network.namespace("c"),
            *["qdisc", "add", "dev", "net0", "root", "tbf", "rate", "6mbit", "burst", "32kb"],
            *("latency", "1s"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if shaped.returncode:
        pytest.skip(f"tc cannot shape a link here: {shaped.stderr.strip()}")
    nodes.start()
    for name in NAMES:
        code, body = nodes.result(name)
        assert (code, body["node"]) == (3, name)
        assert faults(body) == {"c": "slow_in_both"}
        assert {each["node"] for each in body["nodes"]} == set(NAMES)


@pytest.mark.long
def test_a_node_that_never_answers_is_named_and_the_others_end(nodes: Nodes) -> None:
    hangs = "import time; from rankwatch_launcher.job import pair_check; "
    hangs += "pair_check.Measuring.measure = lambda *_: time.sleep(1000); "
    nodes.start(only="d", code=hangs + CODE)
    for name in "abc":
        code, body = nodes.result(name)
        assert (code, faults(body)) == (3, {"d": "silent_in_both"})


@pytest.mark.long
def test_a_node_under_a_cpu_quota_is_named(nodes: Nodes, quota: Callable[[], str], tmp_path: Path) -> None:
    # From the first round on: importing torch under it would take minutes. Its own /sys has no control groups.
    asked, limited = tmp_path / "pid", tmp_path / "limited"
    code = (
        "import os, pathlib, time; from rankwatch_launcher.job.pair_check import Measuring as M; measure = M.measure\n"
    )
    code += f"""
def slow(self, *arguments):
    pathlib.Path({str(asked)!r}).write_text(" ".join(str(child.pid) for child in self._children))
    while not os.path.exists({str(limited)!r}):
        time.sleep(0.05)
    return measure(self, *arguments)
M.measure = slow
"""
    nodes.start(only="b", code=code + CODE)
    group = Path(quota())
    for pid in wait_for(lambda: asked.exists() and asked.read_text(), 240).split():
        group.write_text(pid)
    limited.touch()
    exit_code, body = nodes.result("a")
    assert exit_code == 3
    assert faults(body)["b"] == "slow_in_both"
    figures = next(each for each in body["nodes"] if each["node"] == "b")["fault"]["evidence"]["figures"]
    assert figures.startswith("matrix product")
