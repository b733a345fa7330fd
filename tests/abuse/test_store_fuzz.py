"""Arbitrary records in the rendezvous store: a launcher ignores what is none, says so once, and goes on.

The same sequence in every run.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from abuse.test_launcher_fuzz import changed
from rankwatch.contract.enums import NodeRole
from rankwatch_launcher.coordination.coordinator import Coordinator
from rankwatch_launcher.coordination.decisions import (
    RESTART,
    AttemptDecision,
    JobProgress,
    RestartBudget,
    StepRange,
    StopProposal,
    StopRequest,
)
from rankwatch_launcher.coordination.membership import Member, MembershipRules, NodeProgress, Place, Roster, StopAnswer
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.coordination.store_file import MasterAddress
from rankwatch_launcher.monitor.discovery import Published
from rankwatch_launcher.outcome import FINISHED, Outcome

REQUEST: Final = StopRequest("preempted", "a", "preempted")
RECORDS: Final[dict[str, Any]] = {
    "member/b": asdict(
        Member("b", "h", 2, heartbeat=3, ready_after=0, progress=NodeProgress(StepRange(1, 5), 1.0, True, 7),
               stop_answer=StopAnswer(1, True, 5), connections=("7F000001:1000",))
    ),
    "roster/1": asdict(Roster(1, ("a", "b"), ("c",), {"d": "why"})),
    "place/1/a": asdict(Place(1, NodeRole.ACTIVE, group_rank=0, group_world_size=2, first_rank=0, world_size=4)),
    "excluded": {"nodes": {"d": "why"}},
    "closed": asdict(Outcome(FINISHED, 0, "done", excluded=(("n", "h", "why"),))),
    "end/1": asdict(AttemptDecision(RESTART, "why", exclude={"d": "why"})),
    "progress": asdict(JobProgress(9, 1, 9, "place", 1, (4,), 2)),
    "stop/1": asdict(REQUEST),
    "proposal/1": asdict(StopProposal(1, 40, REQUEST)),
    "fact/monitor": asdict(Published("j", "http://127.0.0.1:1", "token", "run")),
    "fact/master/1": asdict(MasterAddress("127.0.0.1", 1000)),
    "finished/1": {},
    "newest": 1,
    "coordinator": "a",
    "roll": "a\nb\n",
    "waiting": "for nodes",
}  # fmt: skip
EXAMPLES: Final = settings(
    max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def read_all(store: JobStore) -> None:
    """Everything that any launcher reads of a job."""
    store.members(store.member_names())
    attempt = store.newest_attempt()
    store.roster(1)
    store.place(attempt, "a")
    store.waiting_reason().encode()
    store.excluded()
    store.outcome()
    store.decision(1)
    store.restarts()
    store.furthest_step()
    store.stop_request(1)
    store.stop_proposal(1)
    store.find("monitor", Published)
    store.find("master/1", MasterAddress)
    store.all_finished(1, 1, [])


def coordinate(store: JobStore, me: str) -> None:
    """Some rounds of a launcher that coordinates, or that another one does."""
    coordinator = Coordinator(
        store, me, MembershipRules(1, 4, node_timeout=20.0, last_call=0.0),
        budget=lambda: RestartBudget(3, 2), on_lost=lambda *_: None,
    )  # fmt: skip
    for beat in range(4):
        store.write_member(Member(me, "h", 2, heartbeat=beat, ready_after=1))
        coordinator.step(10.0 * beat)


@pytest.mark.parametrize("secret", ["", "secret"])
@pytest.mark.parametrize("key", RECORDS)
def test_whatever_a_record_holds_a_launcher_goes_on(key: str, secret: str) -> None:
    @EXAMPLES
    @given(content=st.one_of(changed(RECORDS[key]), st.binary(max_size=20)))
    def look(content: Any) -> None:
        raw = HashStore()
        store = JobStore(raw, "job", secret)
        store.register(Member("a", "h", 2, ready_after=0))
        store.register(Member("b", "h", 2, ready_after=0))
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        if key in ("coordinator", "roll", "waiting") and isinstance(content, str):
            text = content.encode(errors="replace")
        sealed = f"{store._mac(key, text)} ".encode() + text if secret else text
        raw.set(f"rankwatch/job/{key}", sealed)  # as one of the launchers, if there is a secret
        read_all(store)
        coordinate(store, "a")
        decided = AttemptDecision(RESTART, "a crash")
        store.end_attempt(1, decided, by="a", budget=RestartBudget(3), steps=StepRange(0, 3))
        store.close(Outcome(FINISHED, 0))
        read_all(store)

    look()


def test_an_ignored_record_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    raw = HashStore()
    store = JobStore(raw, "job")
    raw.set("rankwatch/job/end/1", b'{"verdict": 7}')
    with caplog.at_level(logging.WARNING):
        assert [store.decision(1) for _ in range(3)] == [None, None, None]
    assert len(caplog.records) == 1


SECRET_KEYS: Final = ("roll", "newest", "coordinator", "waiting", "progress", "excluded", "finished/1", "end/1")


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_with_a_secret_no_record_of_an_outsider_counts(key: str) -> None:
    """It joins nobody, ends, stalls and finishes nothing: neither its own nor one that it has copied elsewhere."""
    raw = HashStore()
    store = JobStore(raw, "job", "secret")
    store.register(Member("a", "h", 2, ready_after=0))
    store.register(Member("b", "h", 2, ready_after=0))
    forged = RECORDS[key]
    raw.set(f"rankwatch/job/{key}", forged if isinstance(forged, str) else json.dumps(forged))
    if key == "roll":
        assert store.member_names() == []
    assert (store.newest_attempt(), store.decision(1), store.restarts(), store.excluded()) == (0, None, 0, {})
    assert (store.waiting_reason(), store.all_finished(1, 1, [])) == ("", False)
    for name in ("a", "b"):
        store.register(Member(name, "h", 2, ready_after=0))
    coordinate(store, "a")
    assert store.claim_coordinator("x", "b") == "a", "not who was forged to be it"
    assert store.newest_attempt() == 1, "a roster was made all the same"
