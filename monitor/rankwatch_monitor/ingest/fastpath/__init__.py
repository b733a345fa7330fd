"""Decodes metrics of a known byte layout without parsing them.

In: the bytes of a scope of metrics. Out: the same report fields as by the full decoder, or None, which makes the full
decoder read the bytes. ``learning`` derives a layout from bytes that the full decoder has accepted, ``columns`` makes
fields of its numbers. Open ``layout`` first.
"""
