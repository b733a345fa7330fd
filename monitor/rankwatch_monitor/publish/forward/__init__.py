"""Forwards accepted OTLP requests, and the monitor's own verdicts as metrics, to other OTLP backends.

In: request bytes as received, and job snapshots. Out: POST requests from a bounded queue in memory.
Open :mod:`~rankwatch_monitor.publish.forward.forwarder` first.
"""
