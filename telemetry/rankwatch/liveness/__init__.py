"""Liveness: how this process shows that it is alive, and how its launcher sees where it is stuck.

In: the slots and the launcher's settings. Out: liveness ticks in the slots, stack dumps, answers of torch's worker
control plane, the scheduler's stop signal as a stop request, and when the process begins to end.
Open :mod:`~rankwatch.liveness.thread` first.
"""
