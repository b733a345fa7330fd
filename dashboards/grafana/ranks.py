"""Ranks and nodes by name: those that stand out. All the others are on the monitor's page only."""

from __future__ import annotations

from grafana.layout import Row, chosen, dashboard
from grafana.panels import Json, bars, lines, override, query, table, thresholds
from grafana.queries import of_job
from grafana.shared import TO_RANK, blamed, nodes_by_role, stragglers
from rankwatch_monitor.publish.prometheus import names as names
from rankwatch_monitor.publish.prometheus.names import Family


def _here(family: Family, **labels: str) -> str:
    return of_job(family, **labels).removesuffix("}") + ',host=~"$host"}'


def _blamed() -> Row:
    culprits = blamed(
        "Blamed in the open incident", "Why each rank is to blame, in the monitor's words; at most 100.", _here
    )
    return Row("By name", 8, [(12, culprits), (12, stragglers(_here))])


def _worst() -> Row:
    """The ranks that are published by name: the 5 worst by each score and the 5 latest."""
    by = "max by (rank, host)"
    low = thresholds((0.7, "orange"), (0.9, "text"), base="red")
    shown = {"decimals": 2, "thresholds": low, "custom.cellOptions": {"type": "color-text"}}
    worst = table(
        "The worst ranks",
        "The 5 lowest by each score and the 5 for which the others wait longest. Empty cells: not among the 5.",
        [
            query(f"{by} ({_here(names.RANK_LATENESS)})", table=True),
            query(f"{by} ({_here(names.RANK_SCORE, score='robust')})", table=True),
            query(f"{by} ({_here(names.RANK_SCORE, score='relative')})", table=True),
            query(f"{by} ({_here(names.RANK_SCORE, score='individual')})", table=True),
        ],
        {
            "rank": "Rank",
            "host": "Host",
            "Value #A": "Others wait",
            "Value #B": "Robust",
            "Value #C": "Relative",
            "Value #D": "Individual",
        },
        overrides=[
            TO_RANK,
            override("Others wait", {"unit": "s", "decimals": 3}),
            *(override(heading, shown) for heading in ("Robust", "Relative", "Individual")),
        ],
        sort="Others wait",
    )
    late = lines(
        "Others wait for",
        "Time in each step for which the others wait for a rank; of the 5 latest.",
        [query(_here(names.RANK_LATENESS), "rank {{rank}} on {{host}}")],
        unit="s",
    )
    return Row("The worst ranks", 9, [(12, worst), (12, late)])


def _scores() -> Row:
    said = {
        "robust": "Against the middle of the peers.",
        "relative": "Against the fastest rank.",
        "individual": "Against the rank's own best.",
    }
    made = [
        (
            8,
            lines(
                f"GPU score, {score}",
                f"{meaning} Of the 5 lowest; 1 is as fast.",
                [query(_here(names.RANK_SCORE, score=score), "rank {{rank}} on {{host}}")],
                low=None,
            ),
        )
        for score, meaning in said.items()
    ]
    return Row("GPU scores of the worst ranks", 8, made)


def _nodes() -> Row:
    stragglers = f"sort_desc(count by (host) ({_here(names.STRAGGLER)}))"
    culprits = f"sort_desc(count by (host) ({_here(names.CULPRIT)}))"
    waits = f"sort_desc(max by (host) ({_here(names.RANK_LATENESS)}))"
    lowest = f"sort(min by (host) ({_here(names.RANK_SCORE, score='robust')}))"
    return Row(
        "Nodes",
        8,
        [
            (
                6,
                bars(
                    "Blamed ranks by node",
                    "Ranks blamed in the open incident.",
                    query(culprits, "{{host}}", now=True),
                    unit="short",
                ),
            ),
            (
                6,
                bars(
                    "Stragglers by node",
                    "Several on one node speak for the node.",
                    query(stragglers, "{{host}}", now=True),
                    unit="short",
                ),
            ),
            (
                6,
                bars(
                    "Longest wait by node",
                    "For the latest rank of a node, in each step.",
                    query(waits, "{{host}}", now=True),
                    unit="s",
                ),
            ),
            (
                6,
                bars(
                    "Lowest score by node",
                    "Robust score of the slowest rank of a node.",
                    query(lowest, "{{host}}", now=True),
                    unit="short",
                ),
            ),
            (24, nodes_by_role(of_job)),
        ],
    )


def ranks() -> Json:
    """The dashboard of the ranks and nodes of a job that stand out."""
    host = chosen("host", "Node", of_job(names.RANK_LATENESS), "host", several=True)
    said = "Ranks and nodes that stand out. Only those have series by name; every rank is on the monitor's page."
    rows = [_blamed(), _worst(), _scores(), _nodes()]
    return dashboard("rankwatch-ranks", "Rankwatch / Ranks and nodes", said, rows, host, job=True)
