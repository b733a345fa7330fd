"""One node, over all attempts: the ranks' slots and requests, proxy reports, captured stacks, learned limits.

In: the ranks' shared slots and request files, /proc, settings from the monitor. Out: process events, evidence and
observations to the monitor; settings and stop steps to the ranks.
Open :mod:`~rankwatch_launcher.node.files` and :mod:`~rankwatch_launcher.node.session` first, then ``reporter``.
"""
