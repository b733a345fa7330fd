"""Prewarmed workers (``--standby``): interpreters with modules already imported that become the next attempt's ranks.

In: how each local rank was started last. Out: a running rank a fraction of a second after it is requested.
Open :mod:`~rankwatch_launcher.prewarm.pool` first; ``handle`` is the launcher's end of one worker, ``child`` runs in
it, ``bootstrap`` and ``hook`` run code in a rank before its script.
"""
