"""Export: what was recorded leaves the rank as OTLP over HTTP, on the exporter thread.

In: the shared slots, finished section runs, the profiler's windows. Out: encoded OTLP requests to the monitor.
Only the exporter thread imports OpenTelemetry; unsent reports are kept in a bounded queue, then dropped and counted.
Open :mod:`~rankwatch.export.exporter` first, then :mod:`~rankwatch.export.pipeline`.
"""
