"""Step-time regressions: why steps take another time than before.

In: one bounded sample per judged window. Out: change points, what contributed, what else changed, one sentence.
Open :mod:`~rankwatch_monitor.core.regression.explain` first, then ``history``.
"""
