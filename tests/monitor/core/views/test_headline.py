"""A headline of at most 90 characters, made from the reason of the incident, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, DirectiveKind, LimitSource, Proof, VerdictKind, WaitKind
from rankwatch.contract.messages import Wait
from rankwatch_monitor.core.cause import (
    AllAlike,
    Behind,
    Call,
    Cause,
    Detection,
    Exited,
    Followed,
    GilHeld,
    NodeLost,
    NodeSilent,
    NotEntered,
    PastLimit,
    Rejected,
    Silent,
    Site,
    Slow,
    Some,
    Stopped,
    Unnamed,
    Watched,
)
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.core.views.headline import LONGEST, detail, headline, of_job, title
from rankwatch_monitor.core.views.incident_view import shown

HOST = "gpu-0123"
ANSWER = Wait(WaitKind.SOCKET, "10.0.3.7:443")
MEMORY = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB"
REACHED = Call("all_reduce", 8192, "world")
LATE = NotEntered(REACHED, 2047, 8191)
EXITED = VerdictKind.PROCESS_EXITED
IN_STEP = "had been in section 'step' for 11.0 s, over its configured limit of 10 s"
PEER = "RuntimeError: [pair.cc:537] Read error [10.0.0.1]:32408: Connection reset by peer"
ERROR = "RuntimeError: " + "no room " * 30


def incident(*culprits: Culprit, reason: str = "Something is wrong.", **fields: object) -> Incident:
    made = {"kind": VerdictKind.SECTION_OVERRUN, "action": Action.RESTART, "phase": Phase.CONFIRMING} | fields
    return Incident("job-1", "job", attempt=1, opened_at=0.0, reason=reason, culprits=culprits, **made)  # type: ignore[arg-type]


def over(rank: int = 3, host: str = HOST, section: str = "step", others: int = 0) -> Detection:
    return Detection(VerdictKind.SECTION_OVERRUN, rank, host, section, 10.0, 11.0, LimitSource.CONFIGURED, others)


def late(rank: int, cause: Cause, host: str = HOST) -> Culprit:
    return Culprit(rank, host, cause)


@pytest.mark.parametrize(
    ("culprits", "expected"),
    [
        ([late(9210, LATE)], "Rank 9210 on gpu-0123 has not entered all_reduce #8192, in which 2047 ranks wait"),
        (
            [late(rank, Stopped()) for rank in (4, 5, 6)],
            "Rank 4 (and 2 more) on gpu-0123 is stopped by a signal (state T), so it cannot run",
        ),
        ([late(3, Exited(1, "ValueError: bad batch"))], "Rank 3 on gpu-0123 exited with code 1: ValueError: bad batch"),
        ([late(3, Exited(1, PEER))], "Rank 3 on gpu-0123 lost the connection to another rank"),
        ([late(rank, Exited(1, PEER)) for rank in (3, 4)], "Ranks 3-4 on gpu-0123 lost the connection to another rank"),
        ([late(3, NodeSilent(HOST, 1, 12.3))], "Node gpu-0123 is silent: neither its launcher nor its rank reports"),
        (
            [late(rank, NodeSilent("a", 2, 12.3), "a") for rank in (3, 4)],
            "Node a is silent: neither its launcher nor its 2 ranks report",
        ),
        (
            [late(rank, Silent(61.0)) for rank in (3, 4)],
            "Node gpu-0123: its 2 ranks stopped reporting, while its launcher still does",
        ),
        (
            [late(rank, Silent(61.0 + rank), f"host-{rank}") for rank in (3, 4)],
            "Rank 3 on host-3 has sent no report for 64.0 s",
        ),
        (
            [late(3, NodeLost("a", Some((3, 4, 5, 6), 11), "no heartbeat"), "a")],
            "Node a is lost with ranks 3-6 and 7 more: no heartbeat",
        ),
        (
            [late(3, Exited(1, ERROR))],
            "Rank 3 on gpu-0123: RuntimeError: no room no room no room no room no room no room no…",
        ),
        (
            [late(3, Watched(Proof.MAY_END, ANSWER, Site("reward", "reward.py", 88), 3))],
            "Rank 3 on gpu-0123 waits for an answer from 10.0.3.7:443 in reward(), 3 ranks wait",
        ),
    ],
)
def test_the_headline_is_the_culprits_part_of_the_reason(culprits: list[Culprit], expected: str) -> None:
    assert headline(incident(*culprits)) == expected
    assert len(expected) <= LONGEST


@pytest.mark.parametrize(
    ("culprits", "found", "expected"),
    [
        ([late(3, Exited(-11))], replace(over(), kind=VerdictKind.PROCESS_EXITED), ""),
        (
            [late(3, LATE), late(4, LATE)],
            over(others=3),
            f"When detected, it {IN_STEP} (3 others too).",
        ),
        (
            [late(3, LATE), late(4, Stopped())],
            over(0, "a"),
            "When detected, rank 0 on a had been in section 'step' for 11.0 s, over its configured limit of 10 s. "
            "Rank 4: its process is stopped by a signal (state T), so it cannot run.",
        ),
        ([], over(0, "a"), f"When detected, rank 0 on a {IN_STEP}."),
        ([late(0, Exited(1, "KeyError"))], replace(over(0), kind=EXITED, followed=Followed(1, "b", Exited(-6), 2)),
         "After that, rank 1 on b was killed by SIGABRT; 2 more ended like that."),
        ([], None, ""),
        ([late(3, Exited(1, ERROR))], over(), "Something is wrong."),
    ],
)  # fmt: skip
def test_the_detail_is_what_the_reason_adds_to_the_title(
    culprits: list[Culprit], found: Detection | None, expected: str
) -> None:
    why = None if culprits else Unnamed(AllAlike())
    made = incident(*culprits, found=found, why_none=why, reason="Something is wrong.")
    assert detail(made) == expected if found is not None else detail(replace(made, why_none=None)) == ""


@pytest.mark.parametrize("cause", [Slow("Rank 3 is slow."), Rejected("Rank 3 rejected its loss")])
def test_a_title_that_is_the_reason_has_no_detail_whatever_the_words(cause: Cause) -> None:
    made = incident(late(3, cause), reason="In other words")
    assert (detail(made), detail(replace(made, culprits=(late(3, Stopped()),)))) == ("", "In other words")


def test_a_title_holds_more_than_a_headline() -> None:
    words = "exited with code 1: RuntimeError: CUDA error: an illegal memory access was encountered"
    crash = incident(late(3, Exited(1, "RuntimeError: CUDA error: an illegal memory access was encountered")))
    assert headline(crash) == f"Rank 3 on {HOST}: CUDA error: an illegal memory access was encountered"
    assert title(crash) == f"Rank 3 on {HOST} {words}"


def test_a_crash_keeps_the_kind_of_its_error() -> None:
    error = "RuntimeError: CUDA error: device-side assert triggered"
    assert headline(incident(late(3, Exited(1, MEMORY)))) == (
        f"Rank 3 on {HOST}: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB…"
    )
    aborted = Exited(-6, f"Accelerator{error.removeprefix('Runtime')} in the assembler")
    assert headline(incident(late(3, aborted))) == (
        f"Rank 3 on {HOST} was killed by SIGABRT after CUDA error: device-side assert triggered…"
    )
    assert headline(incident(late(3, Exited(1, "ValueError: no; none")))) == (
        f"Rank 3 on {HOST} exited with code 1: ValueError: no; none"
    )


def test_an_incident_that_is_over_is_in_the_past_tense() -> None:
    waits = late(3, NotEntered(Call("all_reduce", 7, "g"), 2, 6), "gpu-is-1")
    expected = "Rank 3 on gpu-is-1 had not entered all_reduce #7, in which 2 ranks waited"
    assert headline(incident(waits, phase=Phase.CLOSED)) == expected
    crash = late(3, Exited(1, "OSError: disk is full"))
    assert headline(incident(crash, phase=Phase.CLOSED)).endswith("disk is full")
    scene = Scene().run(20).hang(2)
    scene.until(lambda: scene.job.incidents and scene.incident.phase is Phase.CLOSED)
    assert headline(scene.incident) == "Rank 2 on host-0 hung in load_batch after step 18; 3 ranks waited"
    assert detail(scene.incident).startswith("When detected, it had been in section 'step'")


def test_a_hang_that_stacks_will_explain_is_stated_without_a_guess() -> None:
    hangs = incident(phase=Phase.CAPTURING, found=over(0, "a", others=1), affected=(0, 1))
    assert title(hangs) == "2 ranks make no progress in section 'step'; the cause is not known yet"
    assert detail(hangs).startswith("When detected, one of them had been in section 'step' for 11.0 s")


def test_a_silent_host_leads_once_its_silence_is_certain_or_it_has_not_answered() -> None:
    records = Scene(8, hosts=2, on_hang="log").run(30).cut_host(1).until_found()
    assert "host-1" not in headline(records.incident)
    records.until(lambda: records.incident.culprits)
    assert headline(records.incident) == "Node host-1 is silent: neither its launcher nor its 4 ranks report"

    acts = Scene(8, hosts=2).run(30).cut_host(1)
    acts.ignored.add(DirectiveKind.RESTART)
    acts.until(lambda: acts.job.incidents and acts.incident.phase is Phase.ACTING)
    assert headline(acts.incident).startswith("Node host-1 did not answer in time")


def test_without_a_culprit_the_headline_is_the_explanation() -> None:
    alike = incident(why_none=Unnamed(AllAlike(function="all_reduce")), found=over(others=3))
    assert headline(alike) == "All ranks are stuck in the same place ('all_reduce')"
    assert detail(alike).endswith("over its configured limit of 10 s (3 others too).")


def test_a_job_that_simply_runs_has_no_headline_and_one_with_an_incident_has_its() -> None:
    scene = Scene(observe_only=True).run(10)
    assert job_view.summary(scene.job, scene.now)["headline"] == ""
    scene.hang(2).until_found()
    expected = "Rank 2 on host-0 hangs in its step after step 8; 3 ranks wait"
    assert job_view.summary(scene.job, scene.now)["headline"] == headline(scene.incident) == expected
    assert of_job(None, "no rank has reported yet") == "No rank has reported yet"
    json.dumps(plain(shown(scene.job, scene.incident, scene.now)))


def test_a_hang_is_stated_with_its_place_and_the_ranks_that_wait() -> None:
    scene = Scene(16, hosts=2).run(20).hang(13)
    scene.until(lambda: scene.job.incidents and scene.incident.phase is Phase.ACTING)
    assert headline(scene.incident) == "Rank 13 on host-1 hangs in load_batch after step 18; 15 ranks wait"
    far = incident(late(2, Behind(3, 1)), found=over(section="data"))
    assert headline(far) == f"Rank 2 on {HOST} hangs in section 'data', 3 steps behind; 1 rank waits"
    several = (late(rank, Behind(0, 6), "a") for rank in (4, 5))
    assert headline(incident(*several, found=over(section="data"))) == (
        "Ranks 4-5 on a hang in section 'data'; 6 ranks wait"
    )
    unknown = incident(late(2, Behind(0, 3)))
    assert "is behind within the same step" in headline(unknown)


def test_a_suspicion_is_stated_as_one() -> None:
    scene = Scene(16, hosts=2, reports_durations=True).run(60).hang(13).until_found()
    scene.until(lambda: scene.incident.phase is Phase.CONFIRMING)
    assert not scene.incident.confirmed
    assert headline(scene.incident) == "Rank 13 on host-1 may be hung in load_batch after step 58; 15 ranks wait"
    past = late(3, PastLimit("within"))
    assert (
        headline(incident(past, confirmed=False))
        == f"Rank 3 on {HOST} may be past its limit, and the other ranks are not"
    )
    observed = late(3, GilHeld(9.0))
    assert headline(incident(observed, confirmed=False)).startswith(f"Rank 3 on {HOST} runs, but no Python thread")


def test_an_incident_as_shown_has_the_last_step_of_its_attempt_also_after_the_restart() -> None:
    scene = Scene(4).run(60).hang(1)
    reached = scene.job.furthest_iteration
    scene.until(lambda: scene.job.attempt == 2)
    assert (scene.job.furthest_iteration, shown(scene.job, scene.incident, scene.now)["furthest_iteration"]) == (
        None,
        reached,
    )
