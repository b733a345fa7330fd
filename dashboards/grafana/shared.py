"""Panels that stand on more than one dashboard: each made once, for whatever part of the jobs a dashboard is about.

``of`` is the selector of that dashboard: ``of_fleet``, ``of_job``, or one that narrows these further.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from grafana.panels import RANK_STATES, SENTENCE, STATES, Json, lines, link, override, query, states, table
from rankwatch_monitor.publish.prometheus import names as names

Selector = Callable[..., str]

LAST_HOUR: Final = "instance_job:rankwatch_goodput:ratio_rate1h"
"""Recording rule: goodput of the last hour."""
LOST_TO_STRAGGLERS: Final = "GPUs lost to stragglers"
_RANK_ON_PAGE: Final = "${page}/#/jobs/${job:percentencode}?rank=${__value.raw}"
TO_RANK: Final[Any] = override(
    "Rank", {"links": [link("Open the rank", _RANK_ON_PAGE, new_tab=True)], "custom.width": 80}
)
"""A column of rank numbers leads to the monitor's page."""


def numbered(of: Selector) -> str:
    """The state of each job as the number that panels show as its word."""
    return " or ".join(f"({of(names.JOB_STATE, state=state)} == 1) * {number}" for number, state in enumerate(STATES))


def state_band(title: str, said: str, of: Selector) -> Json:
    """What each job was doing, a band a job; a hang or recovery that no scrape saw lasts one rate interval."""
    entered = {state: of(names.JOB_STATE_ENTERED, state=state) for state in ("restarting", "hung")}
    numbers = {state: number for number, state in enumerate(STATES)}
    missed = " or ".join(
        f"(increase({counter}[$__rate_interval]) > 0) * 0 + {numbers[state]}" for state, counter in entered.items()
    )
    return states(title, said, query(f"max by (job) ({numbered(of)} or {missed})", "{{job}}"))


def blamed(title: str, said: str, of: Selector) -> Json:
    """The ranks blamed in the open incident, with the monitor's sentence."""
    return table(
        title,
        said,
        [query(f"max by (rank, host, class, reason) ({of(names.CULPRIT)})", table=True)],
        {"rank": "Rank", "host": "Host", "class": "Class", "reason": "Why"},
        overrides=[TO_RANK, override("Why", SENTENCE)],
    )


def stragglers(of: Selector) -> Json:
    """The ranks that are slow, with the monitor's sentence."""
    return table(
        "Stragglers",
        "Ranks that are slow by their own fault, the 100 costliest, with the monitor's sentence.",
        [query(f"max by (rank, host, cause, reason) ({of(names.STRAGGLER)})", table=True)],
        {"rank": "Rank", "host": "Host", "cause": "Cause", "reason": "Why"},
        overrides=[TO_RANK, override("Why", SENTENCE)],
    )


def straggler_cost(of: Selector, legend: str) -> Json:
    """What they cost, over time."""
    return lines(
        LOST_TO_STRAGGLERS,
        "GPUs' worth of time that the ranks of a job spend waiting for slow ones.",
        [query(f"sum by (job) (rate({of(names.STRAGGLER_COST)}[$__rate_interval]))", legend)],
    )


def ranks_by_state(title: str, said: str, selected: str, *, steps: bool = False) -> Json:
    """How many ranks are in each state; ``selected`` are the series that are summed up."""
    by_state = [query(f"sum by (state) ({selected})", "{{state}}")]
    return lines(title, said, by_state, stacked=True, colors=RANK_STATES, steps=steps)


def nodes_by_role(of: Selector) -> Json:
    """How many launchers do what for a job, and how many fail a check of their node."""
    return lines(
        "Nodes by role",
        "Launchers that run ranks, wait as spares, or were excluded (parked); and those whose node fails a check.",
        [
            query(f"sum by (role) ({of(names.JOB_NODES)})", "{{role}}"),
            query(f"sum by (check) ({of(names.JOB_NODES_FAILING)})", "fails check {{check}}"),
        ],
        steps=True,
        colors={"active": "green", "spare": "blue", "parked": "orange"},
    )
