"""The running monitor around the core: clock, scheduling, persistence, ownership, delivery of directives.

In: decoded events. Out: evaluated jobs, stored state, directives for launchers.
Open :mod:`~rankwatch_monitor.service.monitor` first: the only place that reads the clock and calls the core.
"""
