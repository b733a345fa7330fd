"""The elastic agent of one node: starts the ranks of an attempt, watches them, and does what the core decides.

In: a place in a roster, exits of processes, directives, signals, the other launchers' decisions. Out: rank processes
started and ended, and the job's outcome on this node.
Open :mod:`~rankwatch_launcher.shell.loop` first; :mod:`~rankwatch_launcher.core.step` decides.
"""
