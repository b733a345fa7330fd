"""One launch of a job on this node, and the supervisor that launches it again.

In: options and policy. Out: an exit code, an outcome file and the finished flag.
Open :mod:`~rankwatch_launcher.job.launcher` first; ``supervisor`` relaunches as
:mod:`~rankwatch_launcher.retry_policy` decides.
"""
