"""One job: is it healthy, which rank is it, since when, why, what was done, what did it cost."""

from __future__ import annotations

from typing import Final

from grafana.incidents import history, kinds, states_entered
from grafana.layout import Row, dashboard
from grafana.panels import (
    BUCKETS,
    PARTS,
    SENTENCE,
    STATE_WORDS,
    Json,
    bars,
    lines,
    mapping,
    override,
    query,
    stat,
    table,
    thresholds,
)
from grafana.queries import of_job
from grafana.shared import (
    LAST_HOUR,
    blamed,
    nodes_by_role,
    numbered,
    ranks_by_state,
    state_band,
    straggler_cost,
    stragglers,
)
from rankwatch_monitor.publish.prometheus import names as names

VERDICTS: Final = {
    "healthy": "green",
    "worker": "red",
    "stage": "yellow",
    "workload": "yellow",
    "suspected": "yellow",
    "link": "orange",
    "no_step": "orange",
}
SCORES: Final = ("relative", "individual", "robust")


def _state() -> Row:
    observing = mapping({"0": ("acts", "green"), "1": ("observes only", "orange")})
    verdict = query(f"max by (verdict) ({of_job(names.JOB_VERDICT)} == 1)", "{{verdict}}", now=True)
    reason = query(f"max by (reason) ({of_job(names.JOB_REASON)})", "{{reason}}", now=True)
    ratio = thresholds((0.7, "orange"), (0.9, "green"), base="red")
    left = thresholds((1, "orange"), (2, "green"), base="red")
    silence = thresholds((30, "orange"), (60, "red"))
    return Row(
        "State",
        4,
        [
            (
                4,
                stat(
                    "State",
                    "What the job is doing.",
                    query(f"max({numbered(of_job)})", now=True),
                    mappings=[STATE_WORDS],
                ),
            ),
            (
                16,
                stat(
                    "Why",
                    "The reason of the state, as on the page and in the log.",
                    reason,
                    text="name",
                ),
            ),
            (
                4,
                stat(
                    "Diagnosis",
                    "What makes the job lose time: a rank (worker), a stage, the workload or a link; healthy only "
                    "while it makes progress.",
                    verdict,
                    text="name",
                    mappings=[mapping({"1": ("", "text")})],
                ),
            ),
            (
                3,
                stat(
                    "Goodput",
                    "Part of the job's life that went into steps that were kept.",
                    query(f"max({of_job(names.GOODPUT)})", now=True),
                    unit="percentunit",
                    decimals=1,
                    steps=ratio,
                ),
            ),
            (
                3,
                stat(
                    "Step", "Last step that any rank completed.", query(f"max({of_job(names.JOB_ITERATION)})", now=True)
                ),
            ),
            (
                3,
                stat(
                    "Step time",
                    "Median over the ranks, in the last window.",
                    query(f"max({of_job(names.STEP_SECONDS)})", now=True),
                    unit="s",
                    decimals=3,
                ),
            ),
            (3, stat("Ranks", "World size.", query(f"max({of_job(names.JOB_WORLD_SIZE)})", now=True))),
            (
                3,
                stat("Attempt", "Number of the current attempt.", query(f"max({of_job(names.JOB_ATTEMPT)})", now=True)),
            ),
            (
                3,
                stat(
                    "Restarts left",
                    "Restarts that the policy still allows.",
                    query(f"min({of_job(names.JOB_RESTARTS_LEFT)})", now=True),
                    steps=left,
                ),
            ),
            (
                3,
                stat(
                    "Last heard",
                    "Since anything was heard of any rank or launcher.",
                    query(f"time() - max({of_job(names.JOB_LAST_HEARD)})", now=True),
                    unit="s",
                    decimals=0,
                    steps=silence,
                ),
            ),
            (
                3,
                stat(
                    "Policy",
                    "Whether the monitor acts, or only observes.",
                    query(f"max({of_job(names.JOB_OBSERVE_ONLY)})", now=True),
                    mappings=[observing],
                ),
            ),
        ],
    )


def _incident() -> Row:
    to_blame = blamed(
        "Open incident: to blame",
        "Ranks blamed in the incident that is open, with the monitor's sentence. A rank leads to the monitor's page.",
        of_job,
    )
    opened = table(
        "Open incident: what is done",
        "Kind of verdict and the action that is taken.",
        [query(f"max by (kind, action) ({of_job(names.INCIDENT_OPEN)})", table=True)],
        {"kind": "Kind", "action": "Action"},
    )
    withheld = table(
        "What is not done",
        "What the policy wants done and is not, and why: a cap, observe-only, no launcher.",
        [query(f"max by (wanted, reason) ({of_job(names.ACTION_WITHHELD)})", table=True)],
        {"wanted": "Wanted", "reason": "Why"},
        overrides=[override("Why", SENTENCE)],
    )
    return Row(
        "Incidents",
        6,
        [
            *((12, to_blame), (5, opened), (7, withheld)),
            *((14, history(of_job)), (5, kinds(of_job)), (5, states_entered(of_job))),
        ],
    )


def _course() -> Row:
    ranks = ranks_by_state(
        "Ranks by state",
        "What the ranks are doing. Waiting ones are past a limit because of another rank.",
        of_job(names.JOB_RANKS),
        steps=True,
    )
    restarts = lines(
        "Attempts and restarts",
        "Number of the attempt, restarts so far, and how many the policy still allows.",
        [
            query(f"max by (job) ({of_job(names.JOB_ATTEMPT)})", "attempt"),
            query(f"max by (job) ({of_job(names.JOB_RESTARTS)})", "restarts"),
            query(f"max by (job) ({of_job(names.JOB_RESTARTS_LEFT)})", "left"),
        ],
        steps=True,
    )
    band = state_band("State over time", "What the job was doing.", of_job)
    incidents = lines(
        "Incidents so far",
        "By kind of verdict, since the monitor knows the job.",
        [query(f"sum by (kind) ({of_job(names.INCIDENTS)} > 0)", "{{kind}}")],
        steps=True,
    )
    step = lines(
        "Progress",
        "Last step that any rank completed.",
        [query(f"max by (job) ({of_job(names.JOB_ITERATION)})", "step")],
        low=None,
    )
    return Row(
        "Over time", 7, [(24, band), (8, ranks), (8, nodes_by_role(of_job)), (8, restarts), (12, step), (12, incidents)]
    )


def _goodput() -> Row:
    shares = lines(
        "What the time went into",
        "Each second of the job by what it was spent on, once that is known for good (docs/goodput.md).",
        [query(f"sum by (bucket) (rate({of_job(names.JOB_TIME)}[$__rate_interval])) > 0", "{{bucket}}")],
        unit="percentunit",
        stacked=True,
        percent=True,
        colors=BUCKETS,
    )
    summed = bars(
        "So far",
        "Time of the job's whole life by what it was spent on. Steps that were lost and never done again stay "
        "productive here, since a counter cannot go down; Goodput has them right.",
        query(f"sort_desc(sum by (bucket) ({of_job(names.JOB_TIME)}) > 0)", "{{bucket}}", now=True),
        unit="s",
        colors=BUCKETS,
    )
    ratio = lines(
        "Goodput",
        "Part of the time that went into steps that were kept, without waiting for slow ranks: of the whole life, "
        "and of the last hour (a recording rule).",
        [
            query(f"max by (job) ({of_job(names.GOODPUT)})", "whole life"),
            query(
                f'max by (job) ({LAST_HOUR}{{instance=~"$instance",job="$job"}})',
                "last hour",
            ),
        ],
        unit="percentunit",
        high=1,
    )
    return Row("Goodput", 8, [(10, shares), (6, summed), (8, ratio)])


def _steps() -> Row:
    total = lines(
        "Step time",
        "Median over the ranks, window by window.",
        [query(f"max by (job) ({of_job(names.STEP_SECONDS)})", "step")],
        unit="s",
    )
    parts = lines(
        "What a step's time goes into",
        "Medians over the ranks. Communication is what no computation covers; waiting for peers is in it.",
        [query(f"max by (part) ({of_job(names.STEP_PART_SECONDS)})", "{{part}}")],
        unit="s",
        stacked=True,
        colors=PARTS,
    )
    verdicts = lines(
        "Diagnosis",
        "1 for the current verdict: worker (a rank), stage, workload, link, unexplained, no_step, suspected, healthy.",
        [query(f"max by (verdict) ({of_job(names.JOB_VERDICT)})", "{{verdict}}")],
        stacked=True,
        steps=True,
        colors=VERDICTS,
        high=1,
    )
    logged = lines(
        "Logged by the script",
        "The last value of each name that the training script gave to rankwatch.log().",
        [query(f"max by (name) ({of_job(names.JOB_LOGGED)})", "{{name}}")],
        low=None,
    )
    broken = lines(
        "Logged values that were NaN or infinite",
        "How many a minute, by name. They are in no mean, and the panel beside keeps the last finite value.",
        [query(f"sum by (name) (60 * rate({of_job(names.JOB_LOGGED_NON_FINITE)}[$__rate_interval]))", "{{name}}")],
        unit="cpm",
    )
    return Row("Steps", 8, [(5, total), (5, parts), (4, verdicts), (5, logged), (5, broken)])


def _stragglers() -> Row:
    found = bars(
        "Found so far",
        "Stragglers by cause.",
        query(f"sort_desc(sum by (cause) ({of_job(names.STRAGGLERS)}))", "{{cause}}", now=True),
        unit="short",
    )
    return Row("Stragglers", 7, [(12, stragglers(of_job)), (7, straggler_cost(of_job, "GPUs")), (5, found)])


def _communication() -> Row:
    medians = of_job(names.COMMUNICATION_BANDWIDTH, aggregation="median")
    rates = lines(
        "Bus bandwidth of collectives",
        "Median over the groups of a kind, and the slowest groups, as NCCL's tests count it: of who waits least.",
        [
            query(f"max by (kind, operation) ({medians})", "{{operation}} of {{kind}}"),
            query(f"max by (group, operation) ({of_job(names.GROUP_BANDWIDTH)})", "{{operation}} of {{group}}"),
        ],
        unit="Bps",
    )
    slow = lines(
        "Slowest process groups",
        "Bus bandwidth over what is usual: the group's peers, or its own best.",
        [query(f"max by (group, operation) ({of_job(names.GROUP_BANDWIDTH_RATIO)})", "{{operation}} of {{group}}")],
    )
    return Row("Communication", 7, [(12, rates), (12, slow)])


def _scores() -> Row:
    meanings = {
        "relative": "Kernel timings against the fastest rank; 1 is as fast.",
        "individual": "Kernel timings against the rank's own best; below 1 it has become slower.",
        "robust": "Kernel timings against the middle of the peers; 1 is as fast.",
    }
    made = [
        (
            8,
            lines(
                f"GPU score, {score}",
                meanings[score],
                [query(f"max by (aggregation) ({of_job(names.GPU_SCORE, score=score)})", "{{aggregation}}")],
                low=None,
                colors={"min": "red", "median": "blue", "max": "green"},
            ),
        )
        for score in SCORES
    ]
    return Row("GPU scores", 7, made)


def _telemetry() -> Row:
    dropped = lines(
        "Telemetry lost",
        "What ranks had to drop rather than wait, by reason.",
        [query(f"sum by (reason) (rate({of_job(names.TELEMETRY_DROPPED)}[$__rate_interval]))", "{{reason}}")],
        unit="cps",
    )
    reported = mapping({"0": ("no", "orange"), "1": ("yes", "green")})
    instrumented = query(f"max({of_job(names.JOB_INSTRUMENTED)})", now=True)
    sources = query(f"sort_desc(sum by (source) ({of_job(names.KERNEL_SOURCE_RANKS)}))", "{{source}}", now=True)
    scored = query(f"max by (score) ({of_job(names.SCORED_RANKS)})", "{{score}}", now=True)
    scoring = query(f"max by (job) ({of_job(names.SCORING_SECONDS)})", "scoring")
    return Row(
        "Telemetry",
        6,
        [
            (8, dropped),
            (
                3,
                stat(
                    "Ranks report",
                    "Whether a rank has reported in this attempt; where none has, only exits of processes are known.",
                    instrumented,
                    mappings=[reported],
                ),
            ),
            (4, bars("Kernel timings", "Ranks by where their kernel timings come from.", sources, unit="short")),
            (4, bars("Ranks with a score", "The others have sent no kernel timings.", scored, unit="short")),
            (5, lines("Scoring", "How long computing the scores takes.", [scoring], unit="s")),
        ],
    )


def job() -> Json:
    """The dashboard of one job."""
    rows = [
        _state(),
        _incident(),
        _course(),
        _goodput(),
        _steps(),
        _communication(),
        _stragglers(),
        _scores(),
        _telemetry(),
    ]
    said = "Is it healthy, which rank is it, since when, why, what was done, what did it cost?"
    return dashboard("rankwatch-job", "Rankwatch / Job", said, rows, job=True)
