"""Hypothesis without its time limit per example: the machines that run the tests are shared and noisy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("ingest", deadline=None, database=None)
settings.load_profile("ingest")
