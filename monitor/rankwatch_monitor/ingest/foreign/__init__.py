"""Telemetry of other emitters, such as NVIDIA's NeMo Lens: derives progress from their metrics and spans.

In: exported metrics and spans in other vocabularies. Out: the fields of a rank report: section ``step``, open since the
last sign of progress. ``lens`` holds the tables of names. Open ``lens_progress`` first.
"""
