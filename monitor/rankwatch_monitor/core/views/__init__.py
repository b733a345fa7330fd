"""Views: states and rankings, derived from a job when they are read. Nothing here is stored.

In: a job and ``now``. Out: the plain data behind REST answers, the page and the publishers.
Open :mod:`~rankwatch_monitor.core.views.job_view` first.
"""
