"""The ``rankwatch`` command and its sub-commands that query a monitor. No rank imports this.

In: command-line arguments. Out: text or JSON on standard output, and an exit code.
Open :mod:`~rankwatch.cli.main` first; each sub-command is an entry point of ``rankwatch.commands``.
"""
