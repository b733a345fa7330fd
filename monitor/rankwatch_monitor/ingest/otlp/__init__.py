"""The full OTLP decoder: any emitter's metrics and spans -> rank reports.

In: a decoded OTLP message. Out: one report per resource, and the points that were rejected, with the reason.
Open :mod:`~rankwatch_monitor.ingest.otlp.decoder` first; one module for each kind of metric.
"""
