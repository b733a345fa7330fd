"""Goodput: every second of a job's life in exactly one bucket.

In: transitions of a job with their exact time. Out: buckets, the effective-time ratio, steps lost.
Open :mod:`~rankwatch_monitor.core.goodput.accounting` first.
"""
