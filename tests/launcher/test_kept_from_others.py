"""What a launcher keeps from others: its environment from ranks, its stores from other hosts."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from launcher.conftest import FakeMonitor, Launcher, wait_for

SECRETS: Final = {
    "RANKWATCH_MONITOR_TOKEN": "secret-control",
    "RANKWATCH_MONITOR_READ_TOKEN": "secret-read",
    "RANKWATCH_MONITOR_WEBHOOKS": "json=https://hooks/secret-path",
    "RANKWATCH_MONITOR_WEBHOOK_SECRET": "whsec_secret",
    "RANKWATCH_RENDEZVOUS_SECRET": "secret-of-launchers",
    "RANKWATCH_MONITOR_DATABASE": "postgresql://user:secret-password@127.0.0.1/none",
}
PRINTS: Final = "import json, os; print('ENV', json.dumps(dict(os.environ)), flush=True)"


def listening(pid: int) -> set[str]:
    """Addresses on which a process listens, as /proc/net/tcp has them."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(descriptor))
    found = set()
    for table in ("tcp", "tcp6"):
        for row in (line.split() for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]):
            if row[3] == "0A" and f"socket:[{row[9]}]" in sockets:
                found.add(row[1].partition(":")[0])
    return found


@pytest.mark.parametrize("flags", [(), ("--standalone",), ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")])
def test_stores_of_a_job_on_one_node_listen_on_loopback_alone(
    start: Callable[..., Launcher], monitor: FakeMonitor, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time; print('up', flush=True); time.sleep(600)")
    launcher = start("--monitor", monitor.url, *flags, "--nproc-per-node", "1", "--no-standby", str(script))
    wait_for(lambda: "up" in launcher.output.split())
    assert listening(launcher.process.pid) == {"0100007F"}, "127.0.0.1: the launchers' store and the ranks'"


@pytest.mark.parametrize("prewarmed", [False, True])
def test_ranks_get_no_setting_of_a_monitor(
    start: Callable[..., Launcher], monitor: FakeMonitor, tmp_path: Path, prewarmed: bool
) -> None:
    script = tmp_path / "train.py"
    again = "if os.environ['RANKWATCH_ATTEMPT'] == '1': raise SystemExit(3)"
    script.write_text(f"{PRINTS}\n{again if prewarmed else ''}")
    given = SECRETS | {"RANKWATCH_TOKEN": "secret-control", "RANKWATCH_MONITOR_INGEST_TOKEN": "ingest"}
    flags = ("--max-restarts", "1", "--nproc-per-node", "1", *(() if prewarmed else ("--no-standby",)))
    launcher = start("--monitor", monitor.url, *flags, str(script), env=given)
    assert launcher.wait() == 0, launcher.output
    found = [json.loads(line) for line in re.findall(r"ENV (\{.*\})", launcher.output)]
    assert len(found) == (2 if prewarmed else 1)
    for environment in found:
        assert [name for name, value in environment.items() if "secret" in value] == []
        assert (environment["RANKWATCH_TOKEN"], environment["RANKWATCH_MONITOR"]) == ("ingest", monitor.url)
