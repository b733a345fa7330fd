"""The hot path: training code enters sections and steps here, at the cost of a few integer stores each.

In: calls of training code. Out: words of the shared slots, and finished section runs in a bounded ring.
Nothing on that path imports OpenTelemetry or torch, blocks, or raises into training.
:mod:`~rankwatch.recording.section_statistics` summarises the runs on the exporter thread.
Open :mod:`~rankwatch.recording.sections` first, then :mod:`~rankwatch.recording.recorder`.
"""
