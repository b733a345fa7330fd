"""The core: events in, actions out. No IO, no clock, no logging; ``now`` is an argument (unix seconds, never back).

Shape suffixes of arrays: ``R`` ranks of a job, ``S`` section names of a job.
"""
