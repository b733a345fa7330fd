"""Views: the state of a job, rankings of its ranks, and tables, derived when they are read. Nothing is stored here.

In: a job and ``now``. Out: plain data for REST, page, reports and publishers.
Open :mod:`~rankwatch_monitor.core.views.job_view` first, then ``rankings``.
"""
