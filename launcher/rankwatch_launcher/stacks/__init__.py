"""Captures the stacks of this node's ranks and the progress of their collectives, from outside the processes.

In: process ids. Out: frames per thread, sequence numbers per process group, within a bounded size.
Open :mod:`~rankwatch_launcher.stacks.capture` first.
"""
