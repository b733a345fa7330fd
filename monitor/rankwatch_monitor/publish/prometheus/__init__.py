"""``/metrics``: the names under which the monitor publishes, and a snapshot as Prometheus families.

In: job snapshots. Out: the text exposition. ``names`` is the one list of metrics; dashboards are checked against it.
"""
