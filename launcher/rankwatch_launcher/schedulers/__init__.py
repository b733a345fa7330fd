"""Slurm and Kubernetes: what they say about a job, and how a job is requeued or chained.

In: environment variables, ``scontrol``, the downward API. Out: facts for the job's record, and batch launches.
Open :mod:`~rankwatch_launcher.schedulers.slurm_batch` first.
"""
