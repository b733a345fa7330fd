"""The contract between ranks, launchers and the monitor: names, units and JSON shapes, in the standard library only.

Everything that crosses a process boundary is named here and nowhere else:

* :mod:`~rankwatch.wire.names` — OpenTelemetry resource attributes, metric names and units;
* :mod:`~rankwatch.wire.vocabulary` — states, verdict kinds, culprit classes and actions;
* :mod:`~rankwatch.wire.policy` — what a person may set: limits, budgets, actions;
* :mod:`~rankwatch.wire.limits` — the limits that are handed down to ranks;
* :mod:`~rankwatch.wire.control` — the JSON shapes between launcher and monitor;
* :mod:`~rankwatch.wire.prometheus` — the names under which the monitor publishes.
"""
