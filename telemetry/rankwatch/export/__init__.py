"""Export: what was recorded leaves the rank as OTLP over HTTP, on the exporter thread.

In: the shared slots, finished sections, the profiler's windows. Out: encoded OTLP requests to the monitor.
Only the exporter thread imports the OpenTelemetry SDK; unsent batches are kept in a bounded outbox, then counted.
Open :mod:`~rankwatch.export.exporter` first, then :mod:`~rankwatch.export.pipeline`.
"""
