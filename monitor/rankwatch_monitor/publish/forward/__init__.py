"""Forwarding: accepted OTLP requests go on to other backends, with the monitor's own verdicts as metrics.

In: request bytes as they came. Out: POST requests; what waits is spooled on disk within a limit.
Open :mod:`~rankwatch_monitor.publish.forward.forwarder` first.
"""
