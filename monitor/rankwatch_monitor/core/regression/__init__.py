"""Step-time regressions: why steps take another time than before.

In: one bounded sample per evaluated window, kept for a week. Out: the change, its contributors, what else changed at
that time, and one sentence. Pure; imports nothing of the other rooms.
Open :mod:`~rankwatch_monitor.core.regression.explain` first, then ``change_points``, ``history`` and ``sample``.
"""
