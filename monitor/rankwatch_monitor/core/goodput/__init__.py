"""Goodput: every second of a job's life in exactly one bucket.

In: transitions, completed steps and incidents of a job, with their exact time. Out: seconds by bucket, the
effective-time ratio, steps lost. ``ledger`` holds the state, ``intervals`` the arithmetic on spans of time;
:mod:`~rankwatch_monitor.core.goodput_accounting` updates the ledger of a job: open it first.
"""
