"""The running monitor around the core: clock, scheduling, persistence, job ownership, delivery of directives.

In: decoded telemetry and launcher messages. Out: evaluated jobs, stored rows, directives for launchers.
Open :mod:`~rankwatch_monitor.service.monitor` first: the only module that reads the clock and calls the core.
"""
