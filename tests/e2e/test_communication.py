"""Four real ranks over gloo, each on a host of its own: one host's link becomes slow, and the verdict names it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.monitor_process import Api, running_monitor
from support.namespaces import Network, networked
from support.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

NAMES = ("a", "b", "c", "d")
JOB, TOKEN = "mesh", "for-a-test"
SIZE = 1_000_000
SCRIPT = f"""
import torch, torch.distributed as dist
import rankwatch

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
rows = [dist.new_group(each, group_desc="row") for each in ([0, 1], [2, 3])]
columns = [dist.new_group(each, group_desc="column") for each in ([0, 2], [1, 3])]
gradient, batch = torch.ones({SIZE} // 4), torch.ones(200, 200)
rankwatch.init()
while True:
    with rankwatch.step():
        for _ in range(20):
            batch @ batch
        dist.all_reduce(gradient, group=rows[rank // 2])
        dist.all_reduce(gradient, group=columns[rank % 2])
        gradient.fill_(1.0)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    yield from networked(*NAMES)


class Launchers:
    """``rankwatch run`` with one rank on each host, which has a name of its own that all can resolve."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.running: list[subprocess.Popen[bytes]] = []
        (folder / "train.py").write_text(SCRIPT)

    def start(self, url: str) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("RANKWATCH_", "TORCH", "OTEL_"))}
        env |= {"GLOO_SOCKET_IFNAME": "net0", "RANKWATCH_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
        hosts = self.folder / "hosts"
        hosts.write_text("".join(f"{self.network.address(name)} node-{name}\n" for name in NAMES))
        for name in NAMES:
            flags = ["--nnodes", "4", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", JOB]
            flags += [
                "--rdzv-endpoint",
                f"{self.network.address('a')}:29400",
                "--local-addr",
                self.network.address(name),
            ]
            flags += ["--monitor", url, "--job-id", JOB, "--profiling-interval", "8", "--no-standby"]
            command = [sys.executable, "-m", "rankwatch", "run", *flags, str(self.folder / "train.py")]
            inside = ["ip", "netns", "exec", self.network.namespace(name), "unshare", "--uts", "--mount", "sh", "-c"]
            named = f'hostname node-{name} && mount --bind {hosts} /etc/hosts && exec "$@"'
            with (self.folder / f"{name}.log").open("wb") as log:
                self.running.append(
                    subprocess.Popen(
                        [*inside, named, "sh", *command],
                        env=env,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )

    def end(self) -> None:
        for process in self.running:
            process.send_signal(signal.SIGINT)
        for process in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
        for process in self.running:
            process.kill()
            process.wait(10)

    def logs(self) -> str:
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace")[-2000:] for name in NAMES)


@pytest.fixture
def launchers(network: Network, tmp_path: Path) -> Iterator[Launchers]:
    made = Launchers(network, tmp_path)
    yield made
    made.end()


def shape(network: Network, name: str, rate: str) -> None:
    words = ["qdisc", "add", "dev", "net0", "root", "tbf", "rate", rate, "burst", "32kb", "latency", "1s"]
    command = ["tc", "-n", network.namespace(name), *words]
    shaped = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if shaped.returncode:
        pytest.skip(f"tc cannot shape a link here: {shaped.stderr.strip()}")


def test_a_slow_link_is_named_with_group_bandwidths_and_host(
    network: Network, launchers: Launchers, tmp_path: Path
) -> None:
    with (
        running_monitor(tmp_path / "monitor", "--host", network.join(), "--token", TOKEN) as monitor,
        Api(monitor.url, TOKEN) as api,
    ):
        launchers.start(monitor.url)

        def rows() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = api.read(f"/jobs/{JOB}/communication")["operations"]  # type: ignore[assignment]
            return found

        def compared() -> bool:
            assert all(each.poll() is None for each in launchers.running), launchers.logs()
            found = [each for each in rows() if each["best"]] if api.get(f"/api/v1/jobs/{JOB}").is_success else []
            return len(found) == 4

        wait_for(compared, "all four groups have a bandwidth of their own to be compared with", 180)
        healthy = rows()
        assert {(each["group"].split()[0], each["operation"], each["ranks"]) for each in healthy} == {
            ("row", "all_reduce", 2),
            ("column", "all_reduce", 2),
        }
        assert {each["largest"] for each in healthy} == {SIZE}
        assert all(each["peers"] and each["algorithm"] == pytest.approx(each["bus"], rel=0.01) for each in healthy)
        members = {tuple(each["hosts"]) for each in healthy}
        assert len(members) == 4
        assert all(len(hosts) == 2 for hosts in members)

        shape(network, "d", "24mbit")

        def found() -> dict[str, Any]:
            finding: dict[str, Any] = api.read(f"/jobs/{JOB}/scores")["finding"]  # type: ignore[assignment]
            assert finding["verdict"] != "worker", finding
            return finding if (finding["verdict"], finding["host"]) == ("link", "node-d") else {}

        finding = wait_for(found, "the link is found, and whose it is", 180)
        slow = [each for each in rows() if "node-d" in each["hosts"]]
        assert [each["slow"] for each in slow] == [True, True]
        assert "all_reduce: " in finding["reason"]
        assert all(each["bus"] < 6_000_000 < each["best"] / 2 for each in slow), "24 Mbit/s are 3 MB/s"

        samples: list[dict[str, Any]] = api.read(f"/jobs/{JOB}/history?brief=true&bandwidths=true")["samples"]  # type: ignore[assignment]
        course = [each["bandwidths"].get(slow[0]["group"]) for each in samples if each["bandwidths"]]
        assert course[-1] < max(course) / 2

        env = {**os.environ, "RANKWATCH_TOKEN": TOKEN}
        command = [sys.executable, "-m", "rankwatch", "report", "--communication", "--monitor", monitor.url, JOB]
        table = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=True).stdout
        assert sum(line.endswith(" slow") for line in table.splitlines()) >= 2, table
        metrics = api.get("/metrics").text
        assert (
            'rankwatch_communication_bandwidth_bytes_per_second{aggregation="min",job="mesh",kind="row (#)"' in metrics
        )
