"""Webhooks: notices of incidents and stragglers, delivered at least once and in order per job.

In: transitions of jobs. Out: signed POST requests, retried until a deadline.
Open :mod:`~rankwatch_monitor.publish.webhook.publisher` first.
"""
