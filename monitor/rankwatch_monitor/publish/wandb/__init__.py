"""Weights & Biases: one run per job with scores, worst ranks, incidents and goodput; works offline.

In: snapshots. Out: rows (``rows``, pure), written by a run on a thread of its own (``run``).
"""
