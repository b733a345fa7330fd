"""Checks of this node before each attempt: GPU, NVLink, network, storage, host, a command of the user's own.

In: where to read, what is asked for, the counters of the last check. Out: a record of each check.
Open :mod:`~rankwatch_launcher.checks.check` first (the protocol), then :mod:`~rankwatch_launcher.checks.runner` (the
child process that runs them) and :mod:`~rankwatch_launcher.checks.gate` (what follows for the job).
"""
