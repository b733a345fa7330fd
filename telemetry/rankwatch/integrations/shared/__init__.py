"""Code that several integrations share.

Enters: calls of the integrations. Leaves: one reference-counted session (``shared_session``), files accessed with a
timeout (``with_timeout``, ``state_file``), scores read from the monitor (``score_reader``, ``report_log``), and
nvidia-resiliency-ext's straggler settings as a policy (``straggler_policy``). Each is independent of the others.
"""
