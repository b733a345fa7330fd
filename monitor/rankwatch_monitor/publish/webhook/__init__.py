"""Webhooks: notices of incidents, stragglers and job ends, delivered at least once and in order per job.

In: jobs after each evaluation. Out: signed POST requests, retried for up to three days; kept in the database meanwhile.
``notices`` decides what is news, ``bodies`` renders it, ``delivery`` sends it. Open ``publisher`` first.
"""
