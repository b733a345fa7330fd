"""Tables of operations, the form in which traces of training jobs are published, as windows of a job.

In: CSV or Parquet. Out: one window per step and rank.
Open :mod:`~rankwatch_monitor.replay.traces.windows` first.
"""
