"""``rankwatch diagnose``: the verdict on a job that nobody watched, from what its nodes' collectors have seen.

In: reports of nodes (:class:`~rankwatch.contract.diagnosis.NodeReport`), each printed by a process of its own, here or
on another host. Out: a screen, JSON, a record. The verdict is the core's own.
Open :mod:`~rankwatch_monitor.diagnose.judge` first, then :mod:`~rankwatch_monitor.diagnose.command`.
"""
