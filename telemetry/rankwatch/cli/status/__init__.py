"""``rankwatch status``: whether jobs are healthy, and if not, which rank, since when, why and what is done about it.

In: a monitor's address. Out: lines for a terminal, or JSON; exit code 3 for a job in trouble.
Open :mod:`~rankwatch.cli.status.command` first; ``query`` requests and evaluates, ``render`` formats.
"""
