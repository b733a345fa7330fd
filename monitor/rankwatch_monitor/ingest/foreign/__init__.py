"""Other OpenTelemetry emitters: NeMo Lens (``dl.*``, ``nv.dl.*``), Megatron-LM, or any step-named metric.

In: metrics and spans that Rankwatch's own SDK did not send. Out: progress of ranks in Rankwatch's terms.
Open :mod:`~rankwatch_monitor.ingest.foreign.lens` first.
"""
