"""``rankwatch replay``: recorded events, or tables of operations, through the same core.

In: a recording, or a trace table. Out: what was decided and when, and one summary.
Open :mod:`~rankwatch_monitor.replay.cli` first, then ``player``.
"""
