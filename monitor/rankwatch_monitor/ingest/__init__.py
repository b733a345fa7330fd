"""OTLP ingest: what ranks, Collectors and other OpenTelemetry emitters send.

In: HTTP requests with OTLP metrics and spans. Out: rank reports and section spans; what is turned away is counted.
Every bound is a field of :class:`.limits.Limits`. A request passes ``routes`` (HTTP), ``admission`` (backpressure),
``body`` (inflating), then ``metrics_decoder`` or ``traces_decoder``, which use the rooms ``otlp`` (one module per kind
of metric), ``fastpath`` (known byte layouts) and ``foreign`` (other emitters). Open ``routes`` first.
"""
