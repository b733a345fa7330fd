"""Straggler detection: which rank, stage or link slows the job, with cause and cost.

In: windows, kernel reports and device readings of all ranks. Out: scores, stragglers with reasons, one finding about
the job, and actions within caps. ``state`` is the only writer; everything else computes and returns.
Open :mod:`~rankwatch_monitor.core.straggler.detector` first, then ``window``, ``lateness`` and ``scores``.
"""
