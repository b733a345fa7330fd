"""The fleet: which job is in trouble, and who waits for it."""

from __future__ import annotations

from typing import Final

from grafana.empty import NO_RULES
from grafana.incidents import history
from grafana.layout import TO_JOB, Row, dashboard
from grafana.panels import (
    SENTENCE,
    STATES,
    Json,
    coloured,
    lines,
    link,
    override,
    query,
    stat,
    table,
    thresholds,
)
from grafana.queries import of_fleet
from grafana.shared import LAST_HOUR, LOST_TO_STRAGGLERS, ranks_by_state, state_band, straggler_cost
from rankwatch_monitor.publish.prometheus import names as names

WELL: Final = ("starting", "running", "suspected", "slow", "no step", "stopping")
LIVE: Final = (*WELL, "hung", "restarting")
BAD: Final = ("hung", "lost", "failed")
TROUBLE: Final = {"3": ("act", "red"), "2": ("coming back", "orange"), "1": ("well", "green"), "0": ("over", "text")}
_ALIVE: Final = f"on (instance, job) {of_fleet(names.JOB_STATE, state=LIVE)} == 1"
_IN_COLOUR: Final = {"custom.cellOptions": {"type": "color-text"}}


def _glance() -> Row:
    red = thresholds((1, "red"))
    heard = f"time() - {of_fleet(names.JOB_LAST_HEARD)} < 3600"
    failed = f"{of_fleet(names.JOB_STATE, state='failed')} and on (instance, job) {heard}"
    in_trouble = query(f"sum({of_fleet(names.JOB_STATE, state=('hung', 'lost'))} or ({failed}))", now=True)
    coming_back = query(f"sum({of_fleet(names.JOB_STATE, state='restarting')})", now=True)
    stuck = query(
        f"sum({of_fleet(names.JOB_RANKS, state=('hung', 'silent', 'stopped', 'dead'))} and {_ALIVE})", now=True
    )
    lost = query(f"sum(rate({of_fleet(names.STRAGGLER_COST)}[$__rate_interval]))", now=True)
    return Row(
        "At a glance",
        4,
        [
            (
                4,
                stat(
                    "Jobs in trouble",
                    "Jobs that hang, of which nothing is heard, or that have failed within the last hour.",
                    in_trouble,
                    steps=red,
                ),
            ),
            (
                4,
                stat(
                    "Jobs coming back",
                    "Restarted; the first new step has not come yet.",
                    coming_back,
                    steps=thresholds((1, "orange")),
                ),
            ),
            (
                4,
                stat(
                    "Jobs alive",
                    "Starting, running, hung or coming back.",
                    query(f"sum({of_fleet(names.JOB_STATE, state=LIVE)})", now=True),
                ),
            ),
            (
                4,
                stat(
                    "Ranks of live jobs",
                    "World sizes of all jobs that are alive.",
                    query(f"sum({of_fleet(names.JOB_WORLD_SIZE)} and {_ALIVE})", now=True),
                ),
            ),
            (
                4,
                stat(
                    "Ranks that make no progress",
                    "Hung, silent, stopped or dead; those that only wait for them are not counted.",
                    stuck,
                    steps=red,
                ),
            ),
            (
                4,
                stat(
                    LOST_TO_STRAGGLERS,
                    "GPUs' worth of time that ranks spend waiting for slow ones, all jobs together.",
                    lost,
                    decimals=1,
                    steps=thresholds((1, "yellow"), (8, "orange")),
                ),
            ),
        ],
    )


def _jobs() -> Row:
    """One row a job, those in trouble first."""
    by = "max by (instance, job)"
    trouble = f"""
        max by (instance, job, state) (
          ({of_fleet(names.JOB_STATE, state=BAD)} == 1) * 3
          or ({of_fleet(names.JOB_STATE, state="restarting")} == 1) * 2
          or ({of_fleet(names.JOB_STATE, state=WELL)} == 1)
          or ({of_fleet(names.JOB_STATE, state=("finished", "stopped"))} == 1) * 0
        )"""
    asked = [
        query(trouble, table=True),
        query(f"max by (instance, job, reason) ({of_fleet(names.JOB_REASON)})", table=True),
        query(f"{by} ({of_fleet(names.JOB_WORLD_SIZE)})", table=True),
        query(f"{by} ({of_fleet(names.JOB_ITERATION)})", table=True),
        query(f"{by} ({of_fleet(names.GOODPUT)})", table=True),
        query(f"{by} ({of_fleet(names.JOB_RESTARTS)})", table=True),
        query(f"{by} ({of_fleet(names.JOB_RESTARTS_LEFT)})", table=True),
        query(f"time() - {by} ({of_fleet(names.JOB_LAST_HEARD)})", table=True),
    ]
    columns = {"Value #A": "Trouble", "job": "Job", "state": "State", "reason": "Why", "Value #C": "Ranks"}
    columns |= {"Value #D": "Step", "Value #E": "Goodput", "Value #F": "Restarts", "Value #G": "Left"}
    columns |= {"Value #H": "Last heard", "instance": "Monitor"}
    states_coloured = coloured({state: (state, colour) for state, colour in STATES.items()})
    to_job = link("Open the job", TO_JOB + "&var-job=${__value.raw:percentencode}")
    overrides = [
        override("Trouble", coloured(TROUBLE)),
        override("State", states_coloured),
        override("Job", {"links": [to_job], "custom.minWidth": 140}),
        override("Why", SENTENCE),
        override("Goodput", {"unit": "percentunit", "decimals": 1}),
        override("Last heard", {"unit": "s", "decimals": 0}),
        override("Left", {"thresholds": thresholds((1, "orange"), (2, "text"), base="red"), **_IN_COLOUR}),
    ]
    said = "All jobs, those in trouble first, with the monitor's own sentence. A job leads to its dashboard."
    return Row("Jobs", 11, [(24, table("Jobs", said, asked, columns, overrides=overrides, sort="Trouble"))])


def _course() -> Row:
    band = state_band("State of each job", "What each job was doing; a band a job.", of_fleet)
    not_well = ("waiting", "hung", "silent", "stopped", "dead")
    ranks = ranks_by_state(
        "Ranks that are not well, all jobs",
        "Ranks past a limit, by state; those that wait are held up by the others.",
        f"{of_fleet(names.JOB_RANKS, state=not_well)} and {_ALIVE}",
    )
    goodput = lines(
        "Goodput",
        "Part of each job's whole life that went into steps that were kept.",
        [query(f"max by (job) ({of_fleet(names.GOODPUT)})", "{{job}}")],
        unit="percentunit",
        high=1,
    )
    hour = lines(
        "Goodput of the last hour",
        "The same of the last hour only, start-up and time between two runs left aside (a recording rule).",
        [query(f'max by (job) ({LAST_HOUR}{{instance=~"$instance"}})', "{{job}}")],
        unit="percentunit",
        high=1,
        none=NO_RULES,
    )
    cost = straggler_cost(of_fleet, "{{job}}")
    opened = lines(
        "Incidents opened",
        "In each interval, by kind of verdict.",
        [query(f"sum by (kind) (round(increase({of_fleet(names.INCIDENTS)}[$__rate_interval])))", "{{kind}}")],
        stacked=True,
    )
    to_job = override("Job", {"links": [link("Open the job", TO_JOB + "&var-job=${__value.raw:percentencode}")]})
    incidents = history(of_fleet, ("job", "Job"), links=(to_job,))
    panels = [(12, band), (12, ranks), (8, goodput), (8, hour), (8, cost), (24, incidents), (24, opened)]
    return Row("Over time", 8, panels)


def _alerts() -> Row:
    firing = query(
        'max by (job, alertname, severity, instance) (ALERTS{alertstate="firing",alertname=~"Rankwatch.*"})', table=True
    )
    severity = coloured({"page": ("page", "red"), "ticket": ("ticket", "orange"), "info": ("info", "blue")})
    overrides = [
        override("Severity", severity),
        override("Job", {"links": [link("Open the job", TO_JOB + "&var-job=${__value.raw:percentencode}")]}),
    ]
    said = "Alerts of Rankwatch's rules that fire now; docs/runbook.md has a section for each."
    columns = {"severity": "Severity", "alertname": "Alert", "job": "Job", "instance": "Monitor"}
    panel = table(
        "Alerts that fire",
        said,
        [firing],
        columns,
        overrides=overrides,
        none="no alert fires, or Prometheus has not loaded the rules",
    )
    return Row("Alerts", 7, [(24, panel)])


def fleet() -> Json:
    """The dashboard of all jobs."""
    rows = [_glance(), _jobs(), _alerts(), _course()]
    return dashboard("rankwatch-fleet", "Rankwatch / Fleet", "Which job is in trouble?", rows, job=False)
