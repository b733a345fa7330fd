"""A training job for each test; one monitor for all of those that do not ask for their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.training import Training
from support.monitor_fixtures import monitor
from support.monitor_process import RunningMonitor

__all__ = ["monitor"]


@pytest.fixture
def training(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Training]:
    """A job that is still to be started; whatever it starts is ended, and must have left nothing behind."""
    job = Training(tmp_path, re.sub(r"\W+", "-", request.node.name).strip("-"))
    try:
        yield job
    finally:
        job.close()


@pytest.fixture
def watched(training: Training, monitor: RunningMonitor) -> Training:
    """The same, to be watched by the monitor that the tests of this folder share."""
    training.follow(monitor.url)
    return training
