"""Incidents of the dashboard's range, also those that began and ended between two scrapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grafana.panels import SENTENCE, Json, bars, override, query, table
from grafana.queries import checked, of_job
from grafana.shared import TO_RANK, Selector
from rankwatch_monitor.publish.prometheus import names as names
from rankwatch_monitor.publish.prometheus.names import Family

_LABELS: Final = "job, incident, kind, rank, host, class, reason, outcome"


def closed(of: Selector) -> str:
    """Incidents that are closed: their labels no longer change."""
    return checked(of(names.INCIDENT_OPENED).removesuffix("}") + ',outcome!="open"}')


def in_range(of: Selector) -> str:
    """When each incident opened: those that opened in the range and are closed, and those open at its end."""
    of_range = f"last_over_time({closed(of)}[$__range]) >= time() - $__range_s"
    return f"({of_range} or {of(names.INCIDENT_OPENED, outcome='open')})"


def counted(of: Selector, family: Family, label: str) -> str:
    """The growth of a counter over the range; of a job younger than the range, the counter itself."""
    counter = of(family)
    grown = f"({counter} unless {counter} offset $__range) or round(increase({counter}[$__range]))"
    return f"sort_desc(sum by ({label}) ({grown}) > 0)"


def history(of: Selector, *first: tuple[str, str], links: Sequence[Json] = (TO_RANK,)) -> Json:
    """The incidents of the range, one row each; ``first`` are further labels and their headings."""
    opened = in_range(of)
    took = f"last_over_time({of(names.INCIDENT_SECONDS)}[$__range]) and on (instance, job, incident) {opened}"
    return table(
        "Incidents in this range",
        "The 10 latest at each time: rank, reason and outcome, also of those that ended between two scrapes.",
        [
            query(f"max by ({_LABELS}) ({opened}) * 1000", table=True),
            query(f"max by (job, incident) ({took})", table=True),
        ],
        {
            "Value #A": "Opened",
            **dict(first),
            "kind": "Kind",
            "rank": "Rank",
            "host": "Host",
            "class": "Class",
            "reason": "Reason",
            "outcome": "Outcome",
            "Value #B": "Took",
        },
        overrides=[
            *links,
            override("Opened", {"unit": "dateTimeAsIso", "custom.width": 170}),
            override("Took", {"unit": "s", "decimals": 1, "custom.width": 90}),
            override("Reason", SENTENCE),
        ],
        sort="Opened",
    )


def kinds(of: Selector) -> Json:
    """How many of each kind."""
    return bars(
        "Incidents in this range, by kind",
        "From counters, which include incidents that ended between two scrapes.",
        query(counted(of, names.INCIDENTS, "kind"), "{{kind}}", now=True),
        unit="short",
        none="no incident in this range",
    )


def states_entered(of: Selector) -> Json:
    """How often each state was entered."""
    return bars(
        "States entered in this range",
        "From counters, which include states that ended between two scrapes.",
        query(counted(of, names.JOB_STATE_ENTERED, "state"), "{{state}}", now=True),
        unit="short",
        none="the job stayed in its state",
    )


def marked() -> list[tuple[str, str, str, str, str, bool]]:
    """Annotations: name, colour, expression, title, text, and whether the value is the time in milliseconds."""
    opened = of_job(names.INCIDENT_OPENED, outcome="open")
    ended = f"max by ({_LABELS}) ({closed(of_job)}) * 1000"
    return [
        ("Incidents", "red", ended, "{{kind}}", "{{reason}} Outcome: {{outcome}}", True),
        ("Open incident", "dark-red", f"{opened} > 0", "{{kind}}", "{{reason}}", False),
    ]
