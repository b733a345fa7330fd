"""Slurm and Kubernetes: facts about a job from its scheduler, and resuming a job under Slurm.

In: environment variables, ``scontrol``, the downward API. Out: facts for the job's record; requeued or chained jobs.
Open :mod:`~rankwatch_launcher.schedulers.slurm_batch` first; ``slurm`` and ``kubernetes`` wrap each scheduler.
"""
