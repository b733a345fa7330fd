"""A monitor for the tests of this folder."""

from __future__ import annotations

from support.monitor_fixtures import api, job, monitor

__all__ = ["api", "job", "monitor"]
