"""``/metrics`` in Prometheus' text format.

In: jobs and the monitor's own counters. Out: the exposition. ``names`` is the only list of metric families; dashboards
and alerts are checked against it. Open ``exposition`` first.
"""
