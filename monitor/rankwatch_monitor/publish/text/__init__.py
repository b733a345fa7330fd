"""Text reports of a job, for a terminal, the log and the API.

In: a snapshot. Out: lines of at most 100 columns, beginning with those that nvidia-resiliency-ext's users know.
"""
