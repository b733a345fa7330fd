"""Hang detection: which ranks are over a limit, who is to blame, and in which sentence.

In: columns over ranks, limits in force, ``now``; later stacks and collective numbers. Out: verdicts with reasons.
Open :mod:`~rankwatch_monitor.core.hang.detect` first, then :mod:`~rankwatch_monitor.core.hang.blame`.
"""
