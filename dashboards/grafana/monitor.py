"""The monitor itself: whether it answers, judges all jobs, and keeps and publishes what it knows."""

from __future__ import annotations

from grafana.layout import Row, dashboard
from grafana.panels import Json, lines, mapping, query, stat, thresholds
from grafana.queries import of_fleet, of_monitor
from rankwatch_monitor.publish.prometheus import names as names


def _now() -> Row:
    version = query(f"max by (instance, version, python) ({of_monitor(names.BUILD_INFO)})", "{{version}}", now=True)
    answers = mapping({"0": ("no", "red"), "1": ("yes", "green")})
    red = thresholds((1, "red"))
    return Row(
        "Now",
        4,
        [
            (
                4,
                stat(
                    "Answers",
                    "Whether Prometheus reaches every monitor.",
                    query('min(up{instance=~"$instance",job="rankwatch"})', now=True),
                    mappings=[answers],
                ),
            ),
            (4, stat("Version", "Of the monitor that runs.", version, text="name")),
            (
                4,
                stat(
                    "Jobs not judged",
                    "Jobs whose last judgement failed: their hangs are not found.",
                    query(f"sum({of_monitor(names.JOBS_NOT_JUDGED)})", now=True),
                    steps=red,
                ),
            ),
            (
                4,
                stat(
                    "Judgements that failed",
                    "Since the monitor started; its log has each.",
                    query(f"sum({of_monitor(names.TICK_ERRORS)})", now=True),
                    steps=red,
                ),
            ),
            (
                4,
                stat(
                    "Rows refused",
                    "Rows that the database refused since it last worked.",
                    query(f"sum({of_monitor(names.STORE_ERRORS)})", now=True),
                    steps=red,
                ),
            ),
            (
                4,
                stat(
                    "Last judgement",
                    "Seconds since the jobs were last judged; from 5 s on the monitor is not ready.",
                    query(f"max({of_monitor(names.TICK_AGE)})", now=True),
                    unit="s",
                    decimals=1,
                    steps=thresholds((5, "red")),
                ),
            ),
        ],
    )


def _course() -> Row:
    tick = [
        query(of_monitor(names.TICK_SECONDS), "judging, {{instance}}"),
        query(of_monitor(names.TICK_AGE), "since the last, {{instance}}"),
    ]
    taken = query(f"sum by (instance) (rate({of_monitor(names.INGEST_REPORTS)}[$__rate_interval]))", "{{instance}}")
    rejected = query(f"sum by (reason) (rate({of_monitor(names.INGEST_REJECTED)}[$__rate_interval]))", "{{reason}}")
    stale = query(f"sum(rate({of_fleet(names.JOB_STALE_REPORTS)}[$__rate_interval]))", "stale")
    publishing = query(
        f"sum by (publisher) (increase({of_monitor(names.PUBLISH_ERRORS)}[$__rate_interval]))", "{{publisher}}"
    )
    messages = query(
        f"sum by (outcome) (increase({of_monitor(names.WEBHOOK_MESSAGES)}[$__rate_interval]))", "{{outcome}}"
    )
    rows = [
        query(f"sum({of_monitor(names.STORE_WAITING)})", "waiting"),
        query(f"sum(increase({of_monitor(names.STORE_LOST)}[$__rate_interval]))", "lost"),
        query(f"sum(increase({of_monitor(names.STORE_FENCED)}[$__rate_interval]))", "of another monitor's job"),
    ]
    return Row(
        "Over time",
        7,
        [
            (
                5,
                lines(
                    "Judging",
                    "How long a judgement of all jobs takes, and how long ago the last one was.",
                    tick,
                    unit="s",
                ),
            ),
            (5, lines("Reports taken in", "Reports of ranks a second.", [taken], unit="reqps")),
            (
                5,
                lines(
                    "Turned away", "Items a second that were not accepted, by reason.", [rejected, stale], unit="reqps"
                ),
            ),
            (5, lines("Publishing that failed", "What could not be published elsewhere, by publisher.", [publishing])),
            (4, lines("Database", "Rows that wait to be written, and those that never will be.", rows)),
            (12, lines("Webhooks", "Messages that need no more delivery, by what became of them.", [messages])),
            (
                12,
                lines(
                    "Webhooks, waiting",
                    "Messages that no receiver has taken yet.",
                    [query(of_monitor(names.WEBHOOK_WAITING), "{{instance}}")],
                    steps=True,
                ),
            ),
        ],
    )


def monitor() -> Json:
    """The dashboard of the monitors."""
    return dashboard(
        "rankwatch-monitor", "Rankwatch / Monitor", "Is the monitor itself well?", [_now(), _course()], job=False
    )
