"""Straggler detection: which rank, stage or link slows the job, with cause and cost.

In: windows, kernel reports and device readings of all ranks. Out: scores, stragglers with reasons, one finding about
the job. ``state`` is the only writer; everything else computes and returns.
Open :mod:`~rankwatch_monitor.core.straggler_detector` first, which evaluates the windows of a job, then ``window``,
``lateness`` and ``scores``.
"""
