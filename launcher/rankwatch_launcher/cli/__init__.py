"""``rankwatch run``: torchrun's command line with Rankwatch's and ft_launcher's flags added.

In: command line, environment, ft_launcher's YAML file. Out: a checked policy and the launcher's options.
Open :mod:`~rankwatch_launcher.cli.main` first; ``flags`` are generated from the policy and the options, ``nvrx``
translates ft_launcher's.
"""
