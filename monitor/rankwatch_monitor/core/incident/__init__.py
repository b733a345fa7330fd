"""Incidents: from the first verdict through capture and restart to recovery.

In: verdicts, process events, evidence, a person's orders, ``now``. Out: effects (directives, capture orders, records).
Open :mod:`~rankwatch_monitor.core.incident.lifecycle` first; ``incident`` holds the record and the table of phases.
"""
