"""The launcher: ``rankwatch run`` starts a node's ranks as torchrun does and restarts them when they crash or hang.

In: a command line, the monitor's directives. Out: ranks, process events, evidence, an exit code and an outcome file.
Open :mod:`~rankwatch_launcher.job.launcher` first (how one launcher is wired), then
:mod:`~rankwatch_launcher.shell.agent` (how an attempt runs and ends).
"""
