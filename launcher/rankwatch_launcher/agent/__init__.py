"""The elastic agent of one node: starts the ranks of an attempt, watches them, ends them.

In: a place in a roster, exits of processes, directives, signals, the other launchers' decisions. Out: rank processes
started and ended, and the job's outcome on this node. Stacks are captured before any signal that kills.
Open :mod:`~rankwatch_launcher.agent.agent` first, then ``attempt_end`` (pure).
"""
