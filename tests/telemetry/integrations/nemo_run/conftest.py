"""NeMo-Run's environment, made once for all tests, also where several processes run them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from support.monitor_fixtures import monitor
from telemetry.integrations.nemo_run.environment import OWN_PYTHON, Nemo, make_environment

__all__ = ["monitor"]


@pytest.fixture(scope="session")
def nemo(tmp_path_factory: pytest.TempPathFactory) -> Nemo:
    """NeMo-Run; the test is skipped where it cannot be fetched."""
    if kept := os.environ.get(OWN_PYTHON):
        return Nemo(Path(kept))
    base = tmp_path_factory.getbasetemp()
    base = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    folder, made = base / "nemo-run-env", base / "nemo-run-env.made"
    with (base / "nemo-run-env.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            made.write_text(make_environment(folder))
    if why := made.read_text():
        pytest.skip(why)
    return Nemo(folder / "bin" / "python")
