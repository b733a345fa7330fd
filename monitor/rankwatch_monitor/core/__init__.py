"""The core: events in, actions out. No IO, no clock, no logging; ``now`` is an argument (unix seconds, never back).

The rooms below :mod:`.job` (``hang``, ``straggler``, ``regression``, ``goodput``) compute on columns and never see a
job; the modules above it apply them to one; ``incident`` decides what is done. Open :mod:`.apply` first.

Shape suffixes of arrays: ``R`` ranks of a job, ``S`` section names of a job.
"""
