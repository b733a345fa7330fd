"""Straggler detection: which rank, stage or link slows the job, with cause and cost.

In: windows of all ranks. Out: scores, stragglers by name with reasons, actions within caps.
Open :mod:`~rankwatch_monitor.core.straggler.detector` first. Array suffixes: ``R`` ranks, ``K`` kernels, ``S``
sections.
"""
