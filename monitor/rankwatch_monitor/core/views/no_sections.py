"""Why no sections of a job are kept, and what to do to have them."""

from __future__ import annotations

from rankwatch.contract.intervals import SPAN_STRIDE
from rankwatch_monitor.core.job import Job


def no_sections(job: Job, others: int) -> list[str]:
    """The reason, then what to do, with what can be copied in backticks.

    Args:
        job: of which no sections are kept.
        others: ranks of which sections are kept, while those asked for have none.
    """
    if others:
        have = "1 other has" if others == 1 else f"{others} others have"
        return [f"These ranks have sent no sections; {have}. Choose other ranks above."]
    if job.ended is not None:
        where = "they are in the memory of the monitor that watched it, and its record has none"
        return [f"No sections are kept of this job: {where}."]
    if not job.instrumented:
        return [
            "No rank has called rankwatch.init() in this attempt, so no timings of sections (spans) have arrived.",
            "Call it in the script, or launch with rankwatch run --auto, which does so for common training loops.",
        ]
    step = job.furthest_iteration
    if step is None:
        return [
            "No rank has completed a step yet, so no timings of sections (spans) have arrived.",
            "Let the training loop enter rankwatch.step() for each step; rankwatch run --auto does so.",
        ]
    if step < SPAN_STRIDE:
        when = f"those of every {SPAN_STRIDE}th step are sent, and this is step {step}"
        return [f"No timings of sections (spans) have arrived yet: {when}."]
    return [
        f"No timings of sections (spans) have arrived, though ranks have reported {step} steps: none are sent, or a "
        "collector drops them.",
        f"If RANKWATCH_SPAN_STRIDE is 0 for the ranks, launch again without it (the default is {SPAN_STRIDE}): "
        "`unset RANKWATCH_SPAN_STRIDE`",
        "If a collector stands between ranks and monitor, let it pass on traces (POST /v1/traces), with a pipeline "
        "beside that of metrics: `traces: {receivers: [otlp], exporters: [otlphttp]}`",
    ]
