"""Hang detection: ranks over a limit, the culprits among them, and the sentence for both.

In: columns over ranks, limits in force, ``now``; later stacks and collective numbers. Out: verdicts with reasons.
Open :mod:`~rankwatch_monitor.core.hang.detect` first, then :mod:`~rankwatch_monitor.core.hang.blame`.
"""
