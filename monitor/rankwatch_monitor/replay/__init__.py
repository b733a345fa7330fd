"""``rankwatch replay``: plays recordings and operation tables through the monitor's core.

In: a recording of a monitor (``--record``), or a trace table. Out: what was decided and when, and one summary.
Open :mod:`~rankwatch_monitor.replay.cli` first, then ``player``; ``recording`` has the file format.
"""
