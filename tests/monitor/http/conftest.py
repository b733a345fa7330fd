"""One monitor process for all tests of this folder that need none of their own."""

from support.monitor_fixtures import api, job, monitor, state

__all__ = ["api", "job", "monitor", "state"]
