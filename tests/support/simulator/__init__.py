"""Simulated jobs with known answers, for tests, benchmarks and ``python -m support.simulator`` in ``tests/``.

In: a plan of a job and its faults. Out: the events it sends, and how well the core detected the faults.
``plan``, ``process``, ``workload``, ``actors``, ``scene`` and ``outcome`` simulate hangs event by event;
``straggler_plan``, ``straggler_scene`` and ``straggler_outcome`` slow ranks window by window. Open ``process`` first.
"""
