"""Why no sections of a job are kept, and what to check where the monitor cannot decide between causes."""

from __future__ import annotations

from rankwatch.contract.intervals import SPAN_STRIDE
from rankwatch_monitor.core.job import Job


def no_sections(job: Job, others: int) -> list[str]:
    """The reason, then questions; ``others``: ranks of which sections are kept, while those asked for have none."""
    if others:
        have = "1 other has" if others == 1 else f"{others} others have"
        return [f"These ranks have sent no sections; {have}. Choose other ranks above."]
    if job.ended is not None:
        where = "they are in the memory of the monitor that watched it, and its record has none"
        return [f"No sections are kept of this job: {where}."]
    if not job.instrumented:
        return [
            "No rank has called rankwatch.init() in this attempt, so no sections have arrived.",
            "Does the script call it? rankwatch run --auto does so for common training loops.",
        ]
    step = job.furthest_iteration
    if step is None:
        return [
            "No rank has completed a step yet, so no sections have arrived.",
            "Does the training loop enter rankwatch.step()? rankwatch run --auto does so for common loops.",
        ]
    if step < SPAN_STRIDE:
        return [f"No sections have arrived yet: those of every {SPAN_STRIDE}th step are sent, and this is step {step}."]
    return [
        f"Ranks report steps, the last one {step}, but the sections of none.",
        f"Is RANKWATCH_SPAN_STRIDE set to 0 for the ranks? Then none are sent; the default is {SPAN_STRIDE}.",
        "Does a collector stand between ranks and monitor? Then it must pass on traces (POST /v1/traces), too.",
    ]
