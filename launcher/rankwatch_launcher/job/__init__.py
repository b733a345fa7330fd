"""One launch of a job on this node, and the loop that launches it again.

In: options and policy. Out: an exit code and an outcome file.
Open :mod:`~rankwatch_launcher.job.launcher` first; ``supervisor`` retries, ``retry_policy`` decides whether to.
"""
