"""Jobs, incidents and directives to JSON and back, for any that could be."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from monitor.core.scene import Scene
from rankwatch.contract.enums import (
    Action,
    DirectiveKind,
    JobState,
    LimitSource,
    NodeRole,
    ProcessEventKind,
    ProcessState,
    Proof,
    VerdictKind,
    WaitKind,
)
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.contract.messages import Directive, Frame, NodeRegistration, ProcessEvent, RankStack, Wait
from rankwatch.contract.nccl_ras import RasCommunicator, RasFailure, RasProcess, RasProgress, RasReport
from rankwatch.contract.node_checks import CheckResult, CheckState
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.cause import (
    AllAlike,
    Apart,
    Behind,
    Call,
    Circle,
    Detection,
    DifferentCalls,
    Disagreed,
    Exited,
    Followed,
    GilHeld,
    InKernel,
    Launched,
    Made,
    NcclBehind,
    NcclUnreachable,
    NeverStarted,
    NodeLost,
    NodeSilent,
    NotEntered,
    OtherCall,
    Outside,
    PastLimit,
    Shown,
    Silent,
    Site,
    Slow,
    Some,
    StacksFollow,
    Stopped,
    Unnamed,
    Watched,
)  # fmt: skip
from rankwatch_monitor.core.goodput.ledger import Ledger
from rankwatch_monitor.core.hang.observed_durations import ObservedDurations, SectionDurations
from rankwatch_monitor.core.hang.stacks import Stacks
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Ended, Incident, NcclAnswer, NodeChecked, Phase, Timeline, Withheld
from rankwatch_monitor.core.job import Ending, Job, Node, NodeLoss, StopRequest
from rankwatch_monitor.core.rank_runs import RankRuns
from rankwatch_monitor.store.codec import (
    directive_of,
    directive_row,
    incident_of,
    incident_row,
    job_of,
    job_row,
)

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
times = st.floats(0, 2e9)
maybe_times = st.none() | times
whole = st.integers(0, 100_000)
seconds = st.floats(0.001, 86_400)

frames = st.lists(st.builds(Frame, words, words, whole), max_size=3).map(tuple)
stacks = st.builds(
    RankStack,
    rank=whole,
    pid=whole,
    method=words,
    frames=frames,
    process_state=st.sampled_from(ProcessState),
    error=words,
)
sites = st.none() | st.builds(Site, words, words, whole)
calls = st.builds(Call, words, whole, words)
made = st.builds(Made, words, words, sites, st.booleans())
some = st.builds(Some.of, st.lists(whole, max_size=12))
proofs = st.sampled_from(Proof)
waits = st.none() | st.builds(Wait, st.sampled_from(WaitKind), words, maybe_times, words)
causes = st.one_of(
    st.builds(Exited, st.integers(-64, 255), words, st.booleans()),
    st.sampled_from([Stopped(), NeverStarted(), InKernel("h"), GilHeld(3.5), Silent(60.0), NodeSilent("h", 3, 9.5)]),
    st.builds(NodeLost, words, some, words),
    st.builds(OtherCall, made, made, whole, words, whole),
    st.builds(NotEntered, calls, whole, whole, st.none() | calls, sites, st.booleans()),
    st.builds(Behind, whole, whole, st.booleans()),
    st.builds(Outside, sites),
    st.builds(PastLimit, st.sampled_from(["within", "ended", "none"])),
    st.builds(Watched, proofs, waits, sites, whole),
    st.builds(Slow, words),
    st.builds(NcclBehind, words, st.lists(st.builds(Launched, words, whole, whole), max_size=2).map(tuple), whole),
    st.builds(NcclUnreachable, st.booleans()),
)
whys = st.one_of(
    st.just(StacksFollow()),
    st.builds(DifferentCalls, words, whole, st.lists(st.tuples(made, some), max_size=2).map(tuple)),
    st.builds(Circle, some, st.lists(st.tuples(calls, some), max_size=2).map(tuple)),
    st.builds(AllAlike, st.none() | calls, words, st.booleans()),
    st.builds(Apart, st.booleans()),
    st.builds(Disagreed, some, some),
)
followed = st.none() | st.builds(Followed, whole, words, st.builds(Exited, whole), whole)
detections = st.builds(
    Detection, st.sampled_from(VerdictKind), whole, words, st.none() | names, times, times,
    st.sampled_from(LimitSource), whole, st.booleans(), followed,
)  # fmt: skip
results = st.builds(CheckResult, names, st.sampled_from(CheckState), words, st.dictionaries(names, words, max_size=2))
processes = st.lists(st.builds(RasProcess, words, whole, whole, st.booleans()), max_size=2).map(tuple)
progress = st.builds(RasProgress, st.dictionaries(words, whole, max_size=2), whole, processes)
failures = st.builds(RasFailure, words, whole, processes)
communicators = st.builds(
    RasCommunicator,
    words,
    whole,
    st.lists(progress, max_size=2).map(tuple),
    processes,
    st.lists(failures, max_size=1).map(tuple),
)
reports = st.builds(RasReport, words, st.lists(communicators, max_size=2).map(tuple), whole, processes, whole)
answers = st.builds(NcclAnswer, names, words, reports, st.lists(whole, max_size=2).map(tuple))
incidents = st.builds(
    Incident,
    id=names,
    job_id=names,
    kind=st.sampled_from(VerdictKind),
    attempt=whole,
    opened_at=times,
    reason=words,
    culprits=st.lists(st.builds(Culprit, whole, words, causes, whole, words), max_size=3).map(tuple),
    affected=st.sets(st.integers(0, 1_000_000), max_size=4).map(RankRuns),
    why_none=st.none() | st.builds(Unnamed, whys, st.lists(names, max_size=2).map(tuple), whole, whole),
    found=st.none() | detections,
    shown=st.none() | st.builds(Shown, proofs, some, words, waits, sites, maybe_times, whole, st.none() | calls),
    withheld=st.none() | st.sampled_from(Withheld),
    ended=st.none() | st.sampled_from(Ended),
    action=st.sampled_from(Action),
    action_reason=words,
    phase=st.sampled_from(Phase),
    phase_since=times,
    outcome=words,
    closed_at=maybe_times,
    timeline=st.builds(Timeline, *[maybe_times] * 6),
    steps_lost=st.none() | whole,
    furthest_iteration=st.none() | whole,
    stop_step=st.none() | whole,
    directive=whole,
    heard_nodes=st.sets(names, max_size=3),
    exclude=st.lists(names, max_size=3).map(tuple),
    launch=whole,
    stacks=st.lists(stacks, max_size=3).map(Stacks.of),
    node_checks=st.lists(st.builds(NodeChecked, names, names, results), max_size=2).map(tuple),
    dumps=st.dictionaries(st.integers(0, 255), whole, max_size=3),
    nccl=st.lists(answers, max_size=2).map(tuple),
)
policies = st.builds(
    Policy,
    detection=st.booleans(),
    observe_only=st.booleans(),
    initial_heartbeat_timeout=st.none() | seconds,
    heartbeat_timeout=st.none() | seconds,
    section_timeouts=st.dictionaries(st.text("abc/ é", min_size=1, max_size=9), seconds, max_size=3),
    out_of_section_timeout=st.none() | seconds,
    silence_timeout=st.none() | seconds,
    on_hang=st.sampled_from(Action),
    capture_deadline=seconds,
    stop_deadline=seconds,
    max_restarts=st.integers(0, 10_000),
)
registrations = st.builds(
    NodeRegistration,
    *(names, words, whole, whole, words, whole, st.just({"max_restarts": 1}), st.just({"torch": "2"})),
    min_nodes=whole,
    checks=st.lists(results, max_size=2).map(tuple),
)
ends = st.builds(
    ProcessEvent,
    node=names,
    kind=st.sampled_from([ProcessEventKind.FINISHED, ProcessEventKind.FAILED, ProcessEventKind.STOPPED]),
    attempt=whole,
    age=seconds,
    reason=words,
)

roles = st.tuples(st.sampled_from(NodeRole), words)
losses = st.none() | st.builds(NodeLoss, whole, st.lists(whole, max_size=4).map(tuple), times, words)


def through_json(value: object) -> object:
    return json.loads(json.dumps(value))


@given(incidents)
def test_any_incident_comes_back_as_it_was(incident: Incident) -> None:
    row = incident_row(incident)
    assert (row["id"], row["job_id"]) == (incident.id, incident.job_id)
    back = incident_of({**row, "body": through_json(row["body"])})
    assert back == incident
    assert type(back.action) is Action
    assert type(back.phase) is Phase
    assert back.to_json() == incident.to_json()
    assert back.open == incident.open


@given(
    policies,
    st.builds(
        ObservedDurations,
        sections=st.dictionaries(names, st.builds(SectionDurations, whole, seconds, seconds), max_size=3),
        idle_longest=seconds,
        ranks=whole,
        resumed=st.booleans(),
        loaded=st.builds(LearnedTimeouts, st.dictionaries(names, seconds, max_size=2), st.none() | seconds),
    ),
    st.lists(st.tuples(registrations, st.sets(whole, max_size=4), st.none() | ends, roles, losses), max_size=3),
    st.none() | st.builds(StopRequest, times, words, st.booleans()),
    st.none() | st.builds(Ending, st.sampled_from([JobState.FINISHED, JobState.FAILED]), words, times),
    st.tuples(whole, whole, whole),
    times,
)
def test_any_job_comes_back_as_it_was(
    policy: Policy,
    durations: ObservedDurations,
    nodes: list[tuple[NodeRegistration, set[int], ProcessEvent | None, tuple[NodeRole, str], NodeLoss | None]],
    stopping: StopRequest | None,
    ended: Ending | None,
    counts: tuple[int, int, int],
    now: float,
) -> None:
    job = Job("job", 1.5, name="gpt", policy=policy)
    job.durations, job.ended = durations, ended
    job.attempt, job.restarts, job.last_directive = counts
    job.world_size = 4
    job.stopping = stopping
    for registration, ranks, end, role, lost in nodes:
        job.nodes[registration.node] = Node(registration, 2.0, registration.attempt, ranks, end, *role, lost)
    row = through_json(job_row(job))
    assert isinstance(row, dict)
    back = job_of(row, now)
    for name in (
        "id",
        "name",
        "created_at",
        "policy",
        "durations",
        "ended",
        "stopping",
        "attempt",
        "restarts",
        "last_directive",
    ):
        assert getattr(back, name) == getattr(job, name), name
    assert back.silence_baseline == now
    assert len(back.columns) == 4
    assert not back.instrumented
    assert {n: asdict(x) | {"seen": 0} for n, x in back.nodes.items()} == {
        n: asdict(x) | {"seen": 0} for n, x in job.nodes.items()
    }
    assert job_row(back) == job_row(job)


@given(
    st.builds(
        Directive,
        id=whole,
        kind=st.sampled_from(DirectiveKind),
        attempt=whole,
        reason=words,
        incident_id=st.none() | names,
        deadline=seconds,
        stop_step=st.none() | whole,
        settings=st.dictionaries(words, st.none() | seconds | words, max_size=2),
        exclude=st.lists(names, max_size=3).map(tuple),
    )
)
def test_any_directive_comes_back_as_it_was(directive: Directive) -> None:
    row = directive_row("job", directive)
    assert directive_of({**row, "body": through_json(row["body"])}) == directive


def test_a_job_played_on_a_stage_comes_back_as_it_was() -> None:
    scene = Scene(hosts=2).run(10).hang(2).until_found().run(20)
    before = job_row(scene.job)
    scene.reload()
    assert job_row(scene.job) == before


def of_a_newer_monitor(body: Any) -> Any:
    """A stored body in which every object has a field more."""
    if isinstance(body, list):
        return [of_a_newer_monitor(each) for each in body]
    if not isinstance(body, dict):
        return body
    return {name: of_a_newer_monitor(each) for name, each in body.items()} | {"added later": 7}


def test_what_a_newer_monitor_stored_of_a_job_and_its_incidents_is_left_aside() -> None:
    scene = Scene(hosts=2).run(10).hang(2).until_found().run(20)
    scene.job.ended = Ending(JobState.FAILED, "rank 2 hung", scene.now)
    row, incident = job_row(scene.job), scene.job.incidents[0]
    newer = {**row["body"], "ended": of_a_newer_monitor(row["body"]["ended"]), "added later": 7}
    assert job_of({**row, "body": newer}, scene.now).ended == scene.job.ended
    stored = incident_row(incident)
    body = through_json(stored["body"]) | {"added later": 7}
    body["timeline"] = of_a_newer_monitor(body["timeline"])
    body["culprits"] = [{**each, "added later": 7} for each in body["culprits"]]
    assert incident_row(incident_of({**stored, "body": body})) == stored


def test_what_the_writer_did_not_know_is_as_in_a_new_job() -> None:
    """Recordings and records outlive the version that wrote them."""
    job, new = Scene(4, hosts=2).run(20).job, Job("job", 0.0)
    row = json.loads(json.dumps(job_row(job)))
    for field in set(row["body"]) - {"world_size"}:
        older = {**row, "body": {name: value for name, value in row["body"].items() if name != field}}
        assert job_of(older, 30.0).id == job.id
    for field in set(row["body"]["ledger"]) - {"began"}:
        ledger = {name: value for name, value in row["body"]["ledger"].items() if name != field}
        found = job_of({**row, "body": {**row["body"], "ledger": ledger}}, 30.0)
        assert found.ledger.to_json()[field] == Ledger(found.ledger.began).to_json()[field]
    del row["body"]["given_back"]
    assert job_of(row, 30.0).given_back == new.given_back
