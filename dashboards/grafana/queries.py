"""PromQL from the wire contract's names: what is not published cannot be asked for.

How this works: a dashboard never writes a metric by hand. It hands a :class:`Family` and words for its labels to one of
three functions, which check both and add the variables that every panel of a kind is filtered by:

    of_fleet(JOB_STATE, state="hung")   rankwatch_job_state{instance=~"$instance",state="hung"}
    of_job(JOB_STATE, state="hung")     the same, and job="$job"
    of_monitor(TICK_SECONDS)            what a monitor says of itself

:func:`checked` looks at the finished expression once more, since the text around a selector is free.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rankwatch.contract.collectives import OPERATIONS
from rankwatch.contract.enums import Action, Cause, JobState, NodeRole, Part, RankState, StragglerVerdict, VerdictKind
from rankwatch_monitor.publish.prometheus import names as names
from rankwatch_monitor.publish.prometheus.names import Family

OF_THE_SCRAPE: Final = frozenset({"instance", "job"})
"""Labels that Prometheus adds; ``job`` is ours where a family has it."""
WORDS: Final[dict[tuple[str, str], frozenset[str]]] = {
    (names.JOB_STATE.name, "state"): frozenset(JobState),
    (names.JOB_REASON.name, "state"): frozenset(JobState),
    (names.JOB_STATE_ENTERED.name, "state"): frozenset(JobState),
    (names.JOB_RANKS.name, "state"): frozenset(RankState),
    (names.JOB_NODES.name, "role"): frozenset(NodeRole),
    (names.JOB_VERDICT.name, "verdict"): frozenset(StragglerVerdict),
    (names.INCIDENTS.name, "kind"): frozenset(VerdictKind),
    (names.INCIDENT_OPEN.name, "kind"): frozenset(VerdictKind),
    (names.INCIDENT_OPENED.name, "kind"): frozenset(VerdictKind),
    (names.ACTION_WITHHELD.name, "wanted"): frozenset(Action),
    (names.STRAGGLERS.name, "cause"): frozenset(Cause),
    (names.STEP_PART_SECONDS.name, "part"): frozenset(Part),
    (names.COMMUNICATION_BANDWIDTH.name, "operation"): frozenset(OPERATIONS),
    (names.GROUP_BANDWIDTH_RATIO.name, "operation"): frozenset(OPERATIONS),
}
"""Labels whose values are words of ours: a query that misspells one would be empty for ever."""
FAMILIES: Final = {family.name: family for family in names.FAMILIES}
RULES: Final = Path(__file__).parents[1] / "prometheus" / "rules"
RECORDED: Final = frozenset(
    record for path in RULES.glob("*.yml") for record in re.findall(r"- record: (\S+)", path.read_text())
)
"""Names of the recording rules."""
_METRIC: Final = re.compile(r"(?<![\w:])(rankwatch_\w+|\w+:rankwatch_\w+:\w+)(?:\{((?:[^}\"]|\"[^\"]*\")*)\})?")
_MATCHER: Final = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')

Words = str | Sequence[str]


def of_fleet(family: Family, **labels: Words) -> str:
    """A selector over all jobs of the monitors chosen on the dashboard."""
    return _selector(family, ('instance=~"$instance"',), labels)


def of_job(family: Family, **labels: Words) -> str:
    """A selector over the job chosen on the dashboard.

    Raises:
        ValueError: the family is not about jobs, or has no such label or word.
    """
    if "job" not in family.labels:
        raise ValueError(f"{family.name} is not about jobs")
    return _selector(family, ('instance=~"$instance"', 'job="$job"'), labels)


def of_monitor(family: Family, **labels: Words) -> str:
    """A selector over what the chosen monitors say of themselves.

    Raises:
        ValueError: the family is about jobs, or has no such label or word.
    """
    if "job" in family.labels:
        raise ValueError(f"{family.name} is about jobs")
    return _selector(family, ('instance=~"$instance"',), labels)


def _selector(family: Family, first: tuple[str, ...], labels: dict[str, Words]) -> str:
    matchers = list(first)
    for label, words in labels.items():
        several = [words] if isinstance(words, str) else list(words)
        matchers.append(f'{label}{"=" if len(several) == 1 else "=~"}"{"|".join(several)}"')
    return checked(f"{family.name}{{{','.join(matchers)}}}")


def checked(expression: str) -> str:
    """The expression, if all its metrics, labels and words exist.

    Raises:
        ValueError: one does not; the text names it.
    """
    for metric, matchers in _METRIC.findall(expression):
        family = FAMILIES.get(metric)
        if family is None and metric not in RECORDED:
            raise ValueError(
                f"there is no metric {metric}; see rankwatch_monitor.publish.prometheus.names and prometheus/rules"
            )
        for label, words in _MATCHER.findall(matchers):
            if family is not None and label not in OF_THE_SCRAPE | set(family.labels):
                raise ValueError(f"{metric} has no label {label}; it has {', '.join(family.labels) or 'none'}")
            known = WORDS.get((metric, label))
            if known is not None and not set(words.split("|")) <= known:
                raise ValueError(f"{metric}: {label} is one of {', '.join(sorted(known))}, not {words}")
    for grouped in re.findall(r"\b(?:by|on|without|ignoring) ?\(([^)]*)\)", expression):
        for label in filter(None, re.split(r",\s*", grouped)):
            if label not in labels_of(expression):
                raise ValueError(f"nothing in {expression!r} has the label {label}")
    return expression


def families_of(expression: str) -> set[str]:
    """The families that an expression asks for, those behind recording rules left aside."""
    return {metric for metric, _ in _METRIC.findall(expression) if metric in FAMILIES}


def labels_of(expression: str) -> set[str]:
    """The labels that series of an expression may carry, before it sums any up."""
    found = set(OF_THE_SCRAPE)
    for metric, _ in _METRIC.findall(expression):
        found |= set(FAMILIES[metric].labels) if metric in FAMILIES else {"reason"}
    if "ALERTS{" in expression:
        found |= {"alertname", "alertstate", "severity", "scope"}
    return found


def result_labels(expression: str) -> set[str]:
    """The labels that a result carries: those of the outermost ``by``, else all that there are."""
    outer = re.match(r"(?:sum|min|max|avg|count|topk|bottomk) ?(?:by ?\(([^)]*)\))?", expression)
    if outer is None or expression.startswith(("topk", "bottomk")):
        return labels_of(expression)
    return set(filter(None, re.split(r",\s*", outer[1] or "")))
