"""The head of a crash: the first error of each rank by time; who only lost a peer is counted."""

from __future__ import annotations

from rankwatch.contract.enums import ProcessState, VerdictKind
from rankwatch.contract.messages import TRACEBACK, Frame, RankStack
from rankwatch_monitor.core.cause import Exited
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident.state_machine import EvidenceReceived, transition
from rankwatch_monitor.core.incident_record import MOST_ERRORS, Incident, Timeline
from rankwatch_monitor.core.views.crash_head import head
from rankwatch_monitor.store.codec import incident_body, incident_of

LOST = "RuntimeError: [/pytorch/gloo/pair.cc:534] Connection closed by peer [10.0.0.{}]:4242"


def incident(*culprits: Culprit) -> Incident:
    made = Incident("j-1", "j", VerdictKind.PROCESS_EXITED, 1, 1000.0, "a crash", culprits)
    object.__setattr__(made, "timeline", Timeline(since=1000.0))
    return made


def raised(rank: int, text: str, ago: float | None, line: int = 7) -> RankStack:
    frames = (Frame("wait", "/site-packages/torch/x.py", line), Frame("batch", "/job/data.py", 7))
    return RankStack(rank, 100 + rank, TRACEBACK, frames, ProcessState.EXITED, text, raised=ago)


def received(found: Incident, host: str, *stacks: RankStack, at: float = 1010.0) -> None:
    transition(found, EvidenceReceived(host, stacks, at, host=host), at)


def test_the_first_error_comes_first_whoever_reports_first_and_victims_are_folded() -> None:
    found = incident()
    received(found, "n1", raised(2, "ValueError: second", 1.0), *(raised(r, LOST.format(r), 0.5) for r in range(3, 18)))
    received(found, "n0", raised(0, "KeyError: 'first'", 3.0), raised(1, "KeyError: 'first'", 2.5))
    shown = head(found)
    assert shown is not None
    assert [(each["ranks"], each["host"], each["text"], each["at"]) for each in shown["errors"]] == [
        ([0, 1], "n0", "KeyError: 'first'", 1007.0),
        ([2], "n1", "ValueError: second", 1009.0),
    ]
    assert shown["errors"][0]["place"] == "batch (data.py:7)"
    assert (shown["lost_peer"], shown["text"]) == (list(range(3, 18)), "15 ranks lost their peer")


def test_the_first_error_of_a_rank_stays_when_it_is_looked_at_again() -> None:
    found = incident()
    received(found, "n0", raised(0, "ValueError: cause", 1.0))
    received(found, "n0", raised(0, LOST.format(1), 0.1), raised(0, "OSError: later", 0.1))
    shown = head(found)
    assert shown is not None
    assert ([each["text"] for each in shown["errors"]], shown["lost_peer"]) == (["ValueError: cause"], [])


def test_a_rank_that_was_killed_heads_those_who_lost_it() -> None:
    killed = Culprit(3, "n0", Exited(-9))
    found = incident(killed)
    received(found, "n0", raised(0, LOST.format(3), 0.1))
    shown = head(found)
    assert shown is not None
    assert [(each["ranks"], each["text"], each["at"]) for each in shown["errors"]] == [
        ([3], "was killed by signal 9", 1000.0)
    ]
    assert shown["text"] == "1 rank lost its peer"


def test_an_incident_in_which_no_rank_failed_has_none() -> None:
    found = incident()
    assert head(found) is None
    received(found, "n0", RankStack(0, 1, "py-spy", (Frame("f", "/f.py", 1),)))
    assert head(found) is None


def test_errors_are_bounded_the_earliest_stay_and_all_of_it_is_stored() -> None:
    found = incident()
    errors = (raised(rank, f"ValueError: {rank}", rank / 100) for rank in range(100))
    received(found, "n0", *errors, raised(200, LOST.format(1), None))
    assert [each.rank for each in found.errors] == list(range(99, 99 - MOST_ERRORS, -1))
    restored = incident_of({"body": incident_body(found)()})
    assert (restored.errors, tuple(restored.lost_peer)) == (found.errors, (200,))
    assert head(restored) == head(found)


def test_exceptions_of_one_function_are_told_apart_by_their_lines() -> None:
    found = incident()
    received(found, "n0", raised(0, LOST.format(1), 0.1, line=9), raised(1, "ValueError: x", 0.2, line=7))
    groups = {tuple(group.ranks): group.note for group in found.stacks.groups()}
    assert set(groups) == {(0,), (1,)}
