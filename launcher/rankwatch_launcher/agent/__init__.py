"""The elastic agent of one node: starts the ranks of an attempt, watches them, ends them.

In: a roster from the rendezvous, exits of processes, directives, signals. Out: started and ended rank processes, and
how the attempt ended. Evidence is captured before any signal that kills.
Open :mod:`~rankwatch_launcher.agent.agent` first; every private name of torch stands in ``torch_compat``.
"""
