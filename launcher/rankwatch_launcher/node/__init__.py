"""One node beyond its attempts: the ranks' slots, reports in their name, their requests, learned limits.

In: the ranks' shared slots and request files, /proc. Out: process events and reports to the monitor.
Open :mod:`~rankwatch_launcher.node.node` first.
"""
