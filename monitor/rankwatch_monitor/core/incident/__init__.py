"""Incidents: from the first verdict through capture and restart to recovery.

In: verdicts, process events, evidence, orders, ``now``. Out: effects (directives, changed incidents).
Open :mod:`~rankwatch_monitor.core.incident.lifecycle` first, which decides; :mod:`.state_machine` holds the table of
phases and is the only writer of :mod:`~rankwatch_monitor.core.incident_record`.
"""
