"""What Prometheus gets of a job's performance; the rest is judged in ``tests/monitor/service/test_prometheus.py``."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitor.publish.scored import NOW, scored, straggler
from rankwatch import __version__
from rankwatch.contract.enums import Action, Cause, JobState, Proof, VerdictKind
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.cause import Shown, Silent, Some
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import HELD_BECAUSE, Incident, Phase, Timeline
from rankwatch_monitor.core.job import Ending, Job
from rankwatch_monitor.core.straggler.bandwidth import Moved
from rankwatch_monitor.core.straggler.lateness import PARTS
from rankwatch_monitor.core.straggler.links import EARLIER
from rankwatch_monitor.publish.prometheus import names as names
from rankwatch_monitor.publish.prometheus.exposition import NAMED, Own, exposition
from rankwatch_monitor.publish.publisher import Publishing
from rankwatch_monitor.publish.snapshot import snapshot
from rankwatch_monitor.publish.webhook.delivery import Message
from rankwatch_monitor.publish.webhook.publisher import Receiver, Webhooks
from support.http_receiver import Answers, HttpReceiver
from support.waiting import wait_for

Sample = tuple[str, frozenset[tuple[str, str]]]


def published(*jobs: Job, own: Own | None = None, now: float = NOW) -> bytes:
    return exposition(jobs, own or Own(0, {}, 0.0, 0, 0), now)


def samples(*jobs: Job, own: Own | None = None, now: float = NOW) -> dict[Sample, float]:
    found = {}
    for family in text_string_to_metric_families(published(*jobs, own=own, now=now).decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, "Prometheus refuses a series that stands twice"
            found[key] = sample.value
    return found


def value(found: dict[Sample, float], name: str, **labels: str) -> float | None:
    return found.get((f"rankwatch_{name}", frozenset(({"job": "job"} | labels).items())))


def test_scores_over_the_ranks_and_the_worst_by_name() -> None:
    found = samples(scored(512, slow=77))
    assert value(found, "gpu_score", score="relative", aggregation="min") == 0.5
    assert value(found, "gpu_score", score="individual", aggregation="max") == 1.0
    assert value(found, "gpu_score", score="robust", aggregation="median") == pytest.approx(1.0, abs=0.01)
    assert value(found, "rank_gpu_score", rank="77", host="host-19", score="robust") == 0.5
    assert value(found, "rank_lateness_seconds", rank="77", host="host-19") == 0.2
    assert value(found, "scored_ranks", score="relative") == 512
    assert value(found, "step_seconds") == 1.0
    assert value(found, "scoring_seconds") == 0.0421


def test_stragglers_the_verdict_and_the_cost() -> None:
    found = samples(scored(8, slow=5))
    reason = "its kernels take twice as long as those of its peers (rank 5)"
    assert value(found, "straggler", rank="5", host="host-1", cause="compute", reason=reason) == 1.0
    assert value(found, "job_verdict", verdict="worker") == 1.0
    assert value(found, "job_verdict", verdict="healthy") == 0.0
    assert value(found, "straggler_cost_gpu_seconds_total") == 4500.0


def test_what_a_step_went_into_and_where_timings_come_from() -> None:
    job = scored(4)
    job.performance.parts_RP = np.array([[0.1, 0.2, 0.5, 0.2], [0.1, 0.4, 0.5, 0.0], [0.3, 0.3, 0.5, 0.1]])
    job.performance.sources_of = {0: ("cupti", ""), 1: ("cupti", ""), 2: ("none", "no CUPTI here")}
    found = samples(job)
    parts = {part: value(found, "step_part_seconds", part=part) for part in PARTS}
    assert parts == {"data": 0.1, "host": 0.3, "compute": 0.5, "communication": 0.1}
    assert value(found, "kernel_source_ranks", source="cupti") == 2
    assert value(found, "kernel_source_ranks", source="none") == 1


def test_each_family_has_the_labels_of_the_table() -> None:
    job = scored(8, slow=5)
    job.performance.parts_RP = np.full((8, len(PARTS)), 0.25)
    job.performance.sources_of = {0: ("cupti", "")}
    for _ in range(EARLIER):
        moved = Moved(members=2, calls=1, total=0.1, bytes=8, largest=8, shortest=0.1, bus=8, ranks=[0, 1])
        job.performance.bandwidths.take({"all_reduce dp": moved}, job.columns.hosts, NOW)
    labels = {name: {label for label, _ in given} for name, given in samples(job)}
    for family in (*names.FROM_WINDOWS, names.STRAGGLER_COST, names.JOB_VERDICT):
        assert labels[family.name] == set(family.labels)


def test_the_healthy_twin_has_no_straggler() -> None:
    job = scored(8)
    job.last_heard = NOW
    found = samples(job)
    assert value(found, "job_verdict", verdict="healthy") == 1.0
    assert not [key for key in found if key[0] == "rankwatch_straggler"]


def test_a_job_without_scores_publishes_none() -> None:
    published_names = {name for name, _ in samples(Job("job", NOW))}
    assert not published_names & {"rankwatch_gpu_score", "rankwatch_rank_gpu_score", "rankwatch_step_seconds"}


def test_ranks_without_a_score_are_counted_and_never_nan() -> None:
    job = scored(8)
    assert job.performance.scores is not None
    job.performance.scores.gpu_relative_R[:7] = np.nan
    job.performance.scores.gpu_robust_R[:] = np.nan
    found = samples(job)
    assert (value(found, "scored_ranks", score="relative"), value(found, "scored_ranks", score="robust")) == (1, 0)
    assert value(found, "gpu_score", score="robust", aggregation="min") is None
    assert not [key for key, figure in found.items() if np.isnan(figure)]


def test_series_do_not_grow_with_the_ranks_nor_with_the_stragglers() -> None:
    job = scored(4096, slow=5)
    job.performance.stragglers += [straggler(rank) for rank in range(10, 1000)]
    by_name = Counter(name for name, _ in samples(job))
    assert by_name["rankwatch_straggler"] == 100
    assert by_name["rankwatch_rank_gpu_score"] == 15
    assert by_name["rankwatch_rank_lateness_seconds"] == 5


def hung(action: Action, why: str, *, culprits: int = 1, policy: Policy | None = None) -> Job:
    """A job with an open incident about which ``action`` is taken, and why."""
    job = Job("job", NOW - 60.0, policy=policy)
    blamed = tuple(Culprit(rank, "host-0", Silent(60.0)) for rank in range(culprits))
    reason = "Rank 0 is silent."
    about = Incident("i1", "job", VerdictKind.SILENT, 0, NOW, reason, blamed, action=action, action_reason=why)
    job.incidents.append(about)
    job.last_heard = NOW
    return job


def test_culprits_are_named_up_to_a_bound() -> None:
    by_name = Counter(name for name, _ in samples(hung(Action.RESTART, "the policy is to restart", culprits=4096)))
    assert by_name["rankwatch_culprit"] == NAMED


def test_a_short_hang_is_published_after_it_has_ended() -> None:
    """It began and ended between two scrapes: what a scrape finds later has its rank, reason, time and duration."""
    job = hung(Action.LOG, "observe-only is on")
    line = Timeline(since=NOW - 3.0, detected=NOW, decided=NOW, first_step=NOW + 0.8)
    job.incidents[0] = replace(job.incidents[0], phase=Phase.CLOSED, closed_at=NOW + 0.8, outcome="over", timeline=line)
    found = samples(job, now=NOW + 9.0)
    what = {"incident": "i1", "kind": "silent", "rank": "0", "host": "host-0", "class": "host_silent"}
    what |= {"reason": "Rank 0 is silent.", "outcome": "over"}
    assert value(found, "incident_opened_timestamp_seconds", **what) == NOW
    assert value(found, "incident_seconds", incident="i1") == pytest.approx(3.8)
    assert value(found, "incident_open", kind="silent", action="log") is None


def listed(job: Job) -> list[dict[str, str]]:
    """The labels of the incidents that are published one by one."""
    return [dict(labels) for name, labels in samples(job) if name.startswith("rankwatch_incident_opened")]


def test_an_open_incident_has_no_duration_yet_and_a_suspicion_is_not_listed() -> None:
    job = hung(Action.LOG, "observe-only is on")
    assert [each["outcome"] for each in listed(job)] == ["open"]
    assert value(samples(job), "incident_seconds", incident="i1") is None
    job.incidents[0] = replace(job.incidents[0], confirmed=False)
    assert listed(job) == []


def test_the_latest_incidents_are_listed_up_to_a_bound() -> None:
    job = hung(Action.LOG, "observe-only is on")
    job.incidents[:0] = [replace(job.incidents[0], id=f"c{n}", phase=Phase.CLOSED, closed_at=NOW) for n in range(50)]
    assert {each["incident"] for each in listed(job)} == {"i1", *(f"c{n}" for n in range(41, 50))}


def in_state(state: JobState) -> Job:
    """A job in a state in which no step completes."""
    restarting = {"action": Action.RESTART, "phase": Phase.RECOVERING}
    job = hung(Action.LOG, "observe-only is on")
    if state is JobState.LOST:
        job.last_heard = job.silence_baseline = NOW - 3600.0
    elif state is JobState.RESTARTING:
        job.incidents[0] = replace(job.incidents[0], **restarting)
    elif state is JobState.STOPPING:
        job.incidents[0] = replace(job.incidents[0], action=Action.STOP, phase=Phase.ACTING)
    elif state is JobState.SUSPECTED:
        job.incidents[0] = replace(job.incidents[0], confirmed=False)
    elif state is not JobState.HUNG:
        job.ended = Ending(state, "rank 0 exited with code 1", NOW)
    return job


WITHOUT_INCIDENT = {JobState.STARTING, JobState.RUNNING, JobState.SLOW, JobState.NO_STEP, JobState.FINISHED}


@pytest.mark.parametrize("state", sorted(set(JobState) - WITHOUT_INCIDENT))
def test_a_job_that_makes_no_progress_is_not_healthy(state: JobState) -> None:
    job = in_state(state)
    found = samples(job)
    assert value(found, "job_state", state=state) == 1.0
    assert value(found, "job_verdict", verdict="healthy") == 0.0
    assert value(found, "job_verdict", verdict="no_step") == 1.0
    assert snapshot(job, NOW).verdict == "no_step"


def test_a_suspected_hang_is_not_healthy_and_a_straggler_stays_the_verdict() -> None:
    job = hung(Action.LOG, "observe-only is on")
    job.incidents[0] = replace(job.incidents[0], confirmed=False)
    assert value(samples(job), "job_verdict", verdict="healthy") == 0.0
    slow = scored(8, slow=5)
    slow.ended = Ending(JobState.FAILED, "rank 5 exited with code 1", NOW)
    assert value(samples(slow), "job_verdict", verdict="worker") == 1.0


def test_others_never_wait_for_a_negative_time() -> None:
    job = scored(8)  # each rank waits a little longer than its peers
    late = [figure for (name, _), figure in samples(job).items() if name == "rankwatch_rank_lateness_seconds"]
    assert late == [0.0] * 5
    taken = snapshot(job, NOW)
    assert (taken.lateness, {worst.lateness for worst in taken.worst}) == (0.0, {0.0})


@pytest.mark.parametrize(
    ("action", "why"), [(Action.LOG, "observe-only is on"), (Action.STOP, "the restart budget is used up (3 of 3)")]
)
def test_what_the_policy_wants_and_is_not_done_is_reported_with_the_reason(action: Action, why: str) -> None:
    assert value(samples(hung(action, why)), "action_withheld", wanted="restart", reason=why) == 1.0


@pytest.mark.parametrize(
    ("action", "policy"),
    [
        (Action.RESTART, Policy()),
        (Action.LOG, Policy().changed({"on_hang": "log"})),
        (Action.STOP, Policy().changed({"on_hang": "stop"})),
        (Action.STOP, Policy().changed({"on_hang": "save_and_stop"})),  # the ranks did not stop by themselves
    ],
)
def test_what_is_done_as_the_policy_states_is_not_withheld(action: Action, policy: Policy) -> None:
    found = samples(hung(action, "the policy is to act", policy=policy))
    assert not [key for key in found if key[0] == "rankwatch_action_withheld"]


@pytest.mark.parametrize("proof", HELD_BECAUSE)
def test_the_action_on_a_held_incident_is_withheld_with_the_reason(proof: Proof) -> None:
    job = hung(Action.RESTART, "the policy is to restart")
    job.incidents[0] = replace(job.incidents[0], confirmed=False, shown=Shown(proof, Some.of((0,))))
    assert value(samples(job), "action_withheld", wanted="restart", reason=HELD_BECAUSE[proof]) == 1.0
    job.policy = job.policy.changed({"on_hang": "log"})
    assert value(samples(job), "action_withheld", wanted="restart", reason=HELD_BECAUSE[proof]) is None


def test_a_straggler_that_is_not_acted_on_is_reported_only_if_the_policy_wants_it() -> None:
    job = scored(8, slow=5)
    job.performance.stragglers[0].action_reason = "observe-only is on"
    assert value(samples(job), "action_withheld", wanted="capture", reason="observe-only is on") is None
    job.policy = job.policy.changed({"on_straggler": "capture"})
    assert value(samples(job), "action_withheld", wanted="capture", reason="observe-only is on") == 1.0


def test_the_reason_of_a_lost_job_has_no_age_and_is_one_series() -> None:
    def reasons(job: Job, now: float) -> set[Sample]:
        return {key for key in samples(job, now=now) if key[0] == "rankwatch_job_reason"}

    job = hung(Action.LOG, "observe-only is on")
    assert len(reasons(job, NOW)) == 1
    assert value(samples(job, now=NOW + 3600.0), "job_state", state="lost") == 1.0
    assert reasons(job, NOW + 3600.0) == reasons(job, NOW + 7200.0) != set()


def test_counters_begin_at_zero_so_that_an_increase_is_seen() -> None:
    found = samples(Job("job", NOW))
    assert {value(found, "incidents_total", kind=kind) for kind in VerdictKind} == {0.0}
    assert {value(found, "stragglers_total", cause=cause) for cause in Cause} == {0.0}


def test_restarts_left_are_never_negative() -> None:
    job = Job("job", NOW)
    job.restarts = 5
    assert value(samples(job), "job_restarts_left") == 0.0


def test_the_monitor_reports_itself() -> None:
    store = {"store_waiting": 40, "store_lost": 6, "store_fenced": 2}
    own = Own(7, {"bad_body": 2}, 0.01, 1, 3, tick_age=0.2, not_judged=4, publish_errors={"wandb": 5}, **store)
    found = samples(own=own)
    reported = {name: figure for (name, _), figure in found.items()}
    assert reported["rankwatch_store_errors"] == 3
    assert reported["rankwatch_store_rows_waiting"] == 40
    assert reported["rankwatch_store_rows_lost_total"] == 6
    assert reported["rankwatch_store_rows_fenced_total"] == 2
    assert reported["rankwatch_tick_age_seconds"] == 0.2
    assert reported["rankwatch_jobs_not_judged"] == 4
    assert found["rankwatch_publish_errors_total", frozenset({("publisher", "wandb")})] == 5
    assert [dict(labels)["version"] for name, labels in found if name == "rankwatch_build_info"] == [__version__]


def test_what_publishers_count_begins_at_zero_and_is_reported_by_outcome(
    receiver: HttpReceiver, fast_retries: None
) -> None:
    """The receiver is real, and refuses the first message for good."""

    def reported() -> dict[Sample, float]:
        return samples(own=Own(0, {}, 0.0, 0, 0, published=publishing.samples()))

    def counted(what: str) -> dict[str, float]:
        return {dict(labels)["outcome"]: figure for (name, labels), figure in reported().items() if name == what}

    webhooks = Webhooks([Receiver(receiver.url, "json")], {}, lambda: NOW)
    publishing = Publishing([], [webhooks])
    try:
        messages = "rankwatch_webhook_messages_total"
        assert counted(messages) == {"delivered": 0, "given_up": 0, "dropped": 0}
        labels = {name: {label for label, _ in given} for name, given in reported()}
        assert {f.name for f in names.FROM_PUBLISHERS} - labels.keys() == {names.PUBLISH_ERRORS.name}
        assert all(labels[f.name] == set(f.labels) for f in names.FROM_PUBLISHERS if f.name in labels)

        receiver.answers = Answers(first=[400])
        (delivery,) = webhooks.deliveries.values()
        for number in range(2):
            delivery.put(Message(f"key-{number}", number, "job", time.time(), {"event": "job_lost", "text": "lost"}))
        wait_for(lambda: counted(messages) == {"delivered": 1, "given_up": 1, "dropped": 0}, "both came to an end")

        receiver.away()
        delivery.put(Message("key-3", 3, "job", time.time(), {"event": "job_back", "text": "back"}))
        assert reported()["rankwatch_webhook_messages_waiting", frozenset()] == 1
    finally:
        webhooks.close(10)


def test_one_rank_reported_twice_is_one_series() -> None:
    job = scored(8)
    job.performance.stragglers += [straggler(3), straggler(3), straggler(3, cause=Cause.DATA)]
    assert Counter(name for name, _ in samples(job))["rankwatch_straggler"] == 2


def test_promtool_finds_nothing_wrong() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("needs promtool")
    done = subprocess.run(
        [tool, "check", "metrics"], input=published(scored(8, slow=5)), capture_output=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
