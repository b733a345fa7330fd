"""The contract between ranks, launchers and the monitor: names, units and JSON shapes, in the standard library only.

Everything that crosses a process boundary is named here and nowhere else:

* :mod:`~rankwatch.contract.semconv` — OpenTelemetry resource attributes, metric names and units;
* :mod:`~rankwatch.contract.enums` — states, verdict kinds, culprit classes and actions;
* :mod:`~rankwatch.contract.policy` — what a person may set: limits, budgets, actions;
* :mod:`~rankwatch.contract.limits` — the limits that are handed down to ranks;
* :mod:`~rankwatch.contract.messages` — the JSON shapes between launcher and monitor;
* :mod:`~rankwatch_monitor.publish.prometheus.names` — the names under which the monitor publishes.
"""
