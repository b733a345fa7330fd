"""Readers of OTLP metrics: each reads one metric's data points into the report of a rank.

In: data points of metrics, and resource attributes. Out: the fields of a ``RankReport``.
One module per kind of metric; ``identity`` reads the resource, ``series`` turns running totals into increments.
Open ``builder`` first: what all readers write into.
"""
