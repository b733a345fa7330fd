"""Hypothesis without its time limit per example: the machines that run the tests are shared and noisy."""

from __future__ import annotations

import pytest
from hypothesis import settings

from monitor.ingest.decoding import Ingest

settings.register_profile("ingest", deadline=None, database=None)
settings.load_profile("ingest")


@pytest.fixture
def ingest() -> Ingest:
    """A decoder with the limits that a monitor has by default."""
    return Ingest()
