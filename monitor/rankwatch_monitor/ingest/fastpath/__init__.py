"""Fast path: requests of Rankwatch's own ranks, decoded by byte layouts that the full decoder has seen before.

In: request bytes. Out: the same reports that :mod:`~rankwatch_monitor.ingest.otlp.decoder` would make, or a fallback.
Open :mod:`~rankwatch_monitor.ingest.fastpath.layout` first.
"""
