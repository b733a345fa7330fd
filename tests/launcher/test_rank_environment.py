"""What of the launcher's environment a rank gets: nothing with which it could order, read or forge."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from launcher.conftest import FakeMonitor, Launcher

SECRETS: Final = {
    "RANKWATCH_MONITOR_TOKEN": "secret-control",
    "RANKWATCH_MONITOR_READ_TOKEN": "secret-read",
    "RANKWATCH_MONITOR_WEBHOOKS": "json=https://hooks/secret-path",
    "RANKWATCH_MONITOR_WEBHOOK_SECRET": "whsec_secret",
    "RANKWATCH_MONITOR_FORWARD_HEADER": "Authorization=secret-header",
    "RANKWATCH_MONITOR_DATABASE": "postgresql://user:secret-password@127.0.0.1/none",
}
PRINTS: Final = "import json, os; print('ENV', json.dumps(dict(os.environ)), flush=True)"


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
