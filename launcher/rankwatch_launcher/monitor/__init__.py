"""The launcher's link to the monitor, over HTTP only.

In: directives and settings (long poll). Out: registrations, process events, evidence, observations, acknowledgements.
Without a reachable monitor the launcher still restarts crashed ranks.
Open :mod:`~rankwatch_launcher.monitor.link` first; ``discovery`` finds or starts the monitor (``process``).
"""
