"""Prewarmed workers: interpreters that have imported a script's modules and wait to become a rank.

In: what the last attempt imported. Out: a running rank a fraction of a second after it is asked for.
Open :mod:`~rankwatch_launcher.prewarm.pool` first; ``handle`` is the launcher's end of one, ``child`` runs inside it.
"""
