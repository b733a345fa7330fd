"""What of a report is taken where all of it would be more than a job may hold."""

from __future__ import annotations

from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.core.state import Job


def without_new_sections(job: Job, report: RankReport, most: int) -> tuple[RankReport, int]:
    """The report with no more new section names than a job of ``most`` has room for, and how many it lost."""
    known, told = set(job.columns.sections), report.open_sections or {}
    room = max(0, most - len(known))
    taken = known.union([name for name in told if name not in known][:room])
    kept = {name: age for name, age in told.items() if name in taken}
    return report._replace(open_sections=kept), len(told) - len(kept)
