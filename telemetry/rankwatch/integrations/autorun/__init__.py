"""``rankwatch run --auto``: sections and steps of a script that has no line of Rankwatch.

In: calls that torch makes anyway (optimizer step, backward, data loader, save). Out: the same sections and steps that a
script would record by itself.
Open :mod:`~rankwatch.integrations.autorun.attach` first.
"""
