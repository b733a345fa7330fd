"""What several framework integrations share.

In: calls of the integrations. Out: the session they share, files read and written with a timeout, scores read from
the monitor, and the straggler settings of nvidia-resiliency-ext's users as a policy.
"""
