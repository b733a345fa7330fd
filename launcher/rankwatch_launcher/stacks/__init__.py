"""Stacks and collective numbers of this node's ranks, captured from outside before anything is killed.

In: process ids. Out: frames per thread, sequence numbers per process group, within a bounded size.
Open :mod:`~rankwatch_launcher.stacks.capture` first.
"""
