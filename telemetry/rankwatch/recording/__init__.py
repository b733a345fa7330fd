"""The hot path: training code enters sections, steps and beats here; a few integer stores each.

In: calls of training code. Out: words of the shared slots, and finished sections in a bounded ring.
Nothing here imports OpenTelemetry or torch, blocks, or raises into training.
Open :mod:`~rankwatch.recording.sections` first, then :mod:`~rankwatch.recording.recorder`.
"""
