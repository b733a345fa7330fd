"""Publishers: they pass the state of jobs on to other systems.

In: jobs after each evaluation. Out: ``/metrics``, W&B runs, webhooks, text reports.
``publisher`` decides when a job is published, ``snapshot`` is what a publisher gets, ``http_post`` sends it with
retries. None of them can delay or stop the evaluation. Open ``publisher`` first.
"""
