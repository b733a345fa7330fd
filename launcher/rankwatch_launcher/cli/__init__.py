"""``rankwatch run``: torchrun's arguments with Rankwatch's beside them.

In: command line, environment, ft_launcher's YAML file. Out: a policy and the launcher's options, checked.
Open :mod:`~rankwatch_launcher.cli.main` first.
"""
