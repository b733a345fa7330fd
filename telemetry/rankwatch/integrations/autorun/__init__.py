"""``rankwatch run --auto``: sections and steps of a script that has no line of Rankwatch.

Enters: calls of torch (optimizer step, backward, data loader, save). Leaves: the sections and steps that a script would
record itself.
Open :mod:`~rankwatch.integrations.autorun.attach` first.
"""
