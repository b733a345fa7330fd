"""Profiling: kernel timings of sampled steps, CPU time, and device readings by NVML.

In: one step in many, recorded by CUPTI or by torch's profiler. Out: statistics per kernel and per window, made off
the training thread. Outside a sampled step the cost is zero.
Open :mod:`~rankwatch.profiling.profiler` first, then :mod:`~rankwatch.profiling.sampler` and the sources.
"""
