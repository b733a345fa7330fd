"""The launcher's last lines: how the job ended, what it cost, and where its record is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankwatch.cli.formatting import count, duration, percent
from rankwatch.contract.enums import RESTARTS, VerdictKind
from rankwatch.contract.text import one_line, operands
from rankwatch.monitor_client import MonitorClient, MonitorError, path_of
from rankwatch_launcher.monitor.discovery import MonitorDiscovery
from rankwatch_launcher.outcome import Outcome

TIMEOUT: Final = 3.0
"""Seconds for each question to the monitor."""
SHOWN: Final = 5
"""Restarts with their reasons, the newest."""


def summary(outcome: Outcome, discovery: MonitorDiscovery) -> list[str]:
    """The last lines, made while the monitor is still there; without an answer of it they are fewer."""
    try:
        shown = lines(outcome, *_ask(discovery, outcome.job_id))
    except (
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        ArithmeticError,
    ):  # what answers is no monitor, or one of another version
        shown = lines(outcome, {}, ())
    where = [_where(discovery, outcome.job_id)] if discovery.monitor_url else []
    return shown + where


def lines(outcome: Outcome, job: Mapping[str, Any], incidents: Sequence[Mapping[str, Any]]) -> list[str]:
    """How the job ended, and why it was restarted; ``incidents`` has the newest first."""
    restarts = max(outcome.restarts, int(job.get("restarts") or 0))
    facts = []
    step = job.get("iteration")
    if (step := outcome.iteration if step is None else step) is not None:
        facts.append(f"step {step}")
    if (goodput := job.get("goodput")) is not None:
        facts += [f"goodput {percent(goodput)}", *(job.get("goodput_notes") or ())]
    started, ended = job.get("started_at"), job.get("ended_at")
    if started and ended and ended > started:  # a monitor that came up after the ranks has seen no duration
        facts.append(f"in {duration(ended - started)}")
    facts.append(count(restarts, "restart"))
    shown = [f"job {outcome.job_id} {outcome.state}: {', '.join(facts)}"]
    if outcome.reason and outcome.code:
        shown.append(f"  because {one_line(outcome.reason)}")
    return shown + _restarts(incidents)


def _restarts(incidents: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each of the newest restarts; what happened again in the same place is not said again.

    Of the incidents of one attempt the newest is shown: a crash may have been taken for a hang at first.
    """
    of_attempt: dict[Any, Mapping[str, Any]] = {}
    for incident in incidents:
        if incident["action"] in RESTARTS and incident["timeline"]["restarted"] is not None:
            of_attempt.setdefault(incident["attempt"], incident)
    shown, told = [], dict[tuple[Any, ...], Any]()
    for attempt, incident in reversed(list(of_attempt.items())[:SHOWN]):
        first, again = told.setdefault(_what(incident), attempt), incident.get("attempts_here", 0)
        reason = one_line(str(incident["reason"])) if first == attempt else f"the same as in attempt {first}"
        if again and first == attempt:
            reason = f"it stood at the same place as {count(again, 'earlier attempt')}"
        shown.append(f"  restarted attempt {attempt}: {reason}")
    return shown


def _what(incident: Mapping[str, Any]) -> tuple[Any, ...]:
    """What happened, without its durations: sentences about a hang differ in them, those about a crash in the error."""
    if incident["kind"] == VerdictKind.PROCESS_EXITED:
        return (incident["reason"],)
    ranks = tuple((culprit["rank"], culprit["class"]) for culprit in incident["culprits"])
    return incident["kind"], incident["section"], incident["furthest_iteration"], ranks, incident["action"]


def _ask(discovery: MonitorDiscovery, job_id: str) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    if not discovery.monitor_url:
        return {}, ()
    try:
        client = MonitorClient(discovery.monitor_url, discovery.token or None, TIMEOUT)
        job = client.read(path_of(job_id))
        return (job if isinstance(job, dict) else {}), client.listed(f"{path_of(job_id)}/incidents", "incidents")
    except MonitorError:  # away, or the token may not read
        return {}, ()


def _where(discovery: MonitorDiscovery, job_id: str) -> str:
    job = operands(job_id)
    if discovery.record is not None:
        return f"its record: {discovery.record} (rankwatch report {job}, rankwatch open {job})"
    if discovery.holds_monitor:
        return "its record is in the database of RANKWATCH_MONITOR_DATABASE"
    return f"its record is kept by the monitor: rankwatch report {job} --monitor {discovery.monitor_url}"
