"""A headline of at most 90 characters, made from the reason of the incident, and what to do about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, CulpritClass, DirectiveKind, Proof, VerdictKind
from rankwatch_monitor.core.hang.collectives import place
from rankwatch_monitor.core.hang.stacks import GroupProgress
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident.lifecycle import REPEAT_AFTER
from rankwatch_monitor.core.incident_record import NO_LAUNCHER, Incident, Phase
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.core.views.headline import LONGEST, detail, headline, next_action, of_job, title
from rankwatch_monitor.core.views.host_commands import reach
from rankwatch_monitor.core.views.incident_view import shown

HOST = "gpu-0123"
SILENT = CulpritClass.HOST_SILENT
MEMORY = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB"
REACHED = GroupProgress("world", "all_reduce", 8192, 8191, (0, 1))


def incident(*culprits: Culprit, reason: str = "Something is wrong.", **fields: object) -> Incident:
    made = {"kind": VerdictKind.SECTION_OVERRUN, "action": Action.RESTART, "phase": Phase.CONFIRMING} | fields
    return Incident("job-1", "job", attempt=1, opened_at=0.0, reason=reason, culprits=culprits, **made)  # type: ignore[arg-type]


def behind(rank: int, reason: str, host: str = HOST, kind: CulpritClass = CulpritClass.BEHIND) -> Culprit:
    return Culprit(rank, host, kind, reason)


@pytest.mark.parametrize(
    ("culprits", "expected"),
    [
        (
            [behind(9210, f"it has not entered {place(REACHED)}, in which 2047 ranks wait")],
            "Rank 9210 on gpu-0123 has not entered all_reduce #8192, in which 2047 ranks wait",
        ),
        (
            [behind(r, "its process is stopped by a signal (state T), so it cannot run") for r in (4, 5, 6)],
            "Rank 4 (and 2 more) on gpu-0123 is stopped by a signal (state T), so it cannot run",
        ),
        (
            [behind(3, "its process exited with code 1: ValueError: bad batch")],
            "Rank 3 on gpu-0123 exited with code 1: ValueError: bad batch",
        ),
        (
            [behind(3, "neither the launcher nor the rank of gpu-0123 reported for 12.3 s", kind=SILENT)],
            "Node gpu-0123 is silent: neither its launcher nor its rank reports",
        ),
        (
            [behind(r, "neither the launcher nor the 2 ranks of a reported for 12.3 s", "a", SILENT) for r in (3, 4)],
            "Node a is silent: neither its launcher nor its 2 ranks report",
        ),
        (
            [behind(r, "it has sent no report for 61.0 s", kind=SILENT) for r in (3, 4)],
            "Node gpu-0123: its 2 ranks stopped reporting, while its launcher still does",
        ),
        (
            [behind(r, f"it has sent no report for 61.{r} s", f"host-{r}", SILENT) for r in (3, 4)],
            "Rank 3 on host-3 has sent no report for 61.3 s",
        ),
        (
            [behind(3, "node a is lost with ranks 3, 4, 5, 6 and 7 more: no heartbeat", "a", SILENT)],
            "Node a is lost with ranks 3-6 and 7 more: no heartbeat",
        ),
        (
            [behind(3, "its process exited with code 1: RuntimeError: " + "no room " * 30)],
            "Rank 3 on gpu-0123: RuntimeError: no room no room no room no room no room no room no…",
        ),
        ([behind(3, "it " + "waits " * 40)], "Rank 3 on gpu-0123" + " waits" * 11 + "…"),
    ],
)
def test_the_headline_is_the_culprits_part_of_the_reason(culprits: list[Culprit], expected: str) -> None:
    assert headline(incident(*culprits)) == expected
    assert len(expected) <= LONGEST


def test_once_stacks_were_captured_the_next_action_is_the_restart_and_without_a_launcher_none_is_ordered() -> None:
    scene = Scene(observe_only=True).run(10).hang(2).until_found()
    assert next_action(scene.incident).action is Action.CAPTURE
    scene.order(Action.CAPTURE)
    scene.until(lambda: scene.incident.stacks and scene.incident.phase is Phase.DETECTED)
    assert next_action(scene.incident)[:3:2] == (Action.RESTART, (2,))
    watched = next_action(incident(behind(2, "it is late"), action=Action.LOG, action_reason=NO_LAUNCHER))
    assert (watched.action, watched.text) == (
        None,
        "Restart the job with the tool that started it: no launcher of Rankwatch runs it.",
    )


@pytest.mark.parametrize(
    ("culprits", "reason", "expected"),
    [
        ([behind(3, "its process was killed by SIGSEGV")], "Rank 3 on gpu-0123 was killed by SIGSEGV.", ""),
        (
            [behind(3, "its process exited with code 1: RuntimeError: CUDA error: an illegal access to memory, found")],
            "Rank 3 on gpu-0123 exited with code 1: RuntimeError: CUDA error: an illegal access to memory, found.",
            "",
        ),
        (
            [behind(3, "it is behind")],
            "Rank 3 on gpu-0123 has been in section 'step' for 11.0 s, over its limit of 10 s (3 others too): it is "
            "behind; likewise rank 4.",
            "When detected, it had been in section 'step' for 11.0 s, over its limit of 10 s (3 others too).",
        ),
        (
            [behind(3, f"it has not entered {place(REACHED)}")],
            "Rank 0 on a has been in section 'step' for 11.0 s, over its limit of 10 s; rank 3 on x is to blame: "
            f"it has not entered {place(REACHED)}; rank 4: it is late.",
            "When detected, rank 0 on a had been in section 'step' for 11.0 s, over its limit of 10 s. Rank 4: it is "
            "late.",
        ),
        (
            [behind(3, "node a is lost with ranks 3, 4, 5: no heartbeat", "a", SILENT)],
            "Node a is lost with ranks 3, 4, 5: no heartbeat.",
            "",
        ),
        (
            [],
            "Rank 0 on a has been in section 'step' for 11.0 s, over its limit of 10 s; all wait for storage.",
            "When detected, rank 0 on a had been in section 'step' for 11.0 s, over its limit of 10 s.",
        ),
        ([], "An operator ordered restart.", ""),
        ([behind(3, "it is busy")], "Rank 3 computes.", "Rank 3 computes."),
        ([behind(3, "it " + "waits " * 40)], "Rank 3 " + "waits " * 40, "Rank 3 " + "waits " * 40),
    ],
)
def test_the_detail_is_what_the_reason_adds_to_the_title(culprits: list[Culprit], reason: str, expected: str) -> None:
    assert detail(incident(*culprits, reason=reason)) == expected


def test_a_title_holds_more_than_a_headline() -> None:
    words = "exited with code 1: RuntimeError: CUDA error: an illegal memory access was encountered"
    crash = incident(behind(3, f"its process {words}"))
    assert headline(crash) == f"Rank 3 on {HOST}: CUDA error: an illegal memory access was encountered"
    assert title(crash) == f"Rank 3 on {HOST} {words}"


def test_a_crash_keeps_the_kind_of_its_error() -> None:
    error = "RuntimeError: CUDA error: device-side assert triggered"
    why = f"rank 5 on host-0 exited with code 1: {error}; all 3 restarts are used up (--max-restarts)"
    assert of_job(None, why) == "Rank 5 on host-0 exited with code 1: CUDA error: device-side assert triggered"
    memory = f"its process exited with code 1: {MEMORY}"
    assert headline(incident(behind(3, memory))) == (
        f"Rank 3 on {HOST}: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB…"
    )
    aborted = f"its process was killed by SIGABRT after Accelerator{error.removeprefix('Runtime')} in the assembler"
    assert headline(incident(behind(3, aborted))) == (
        f"Rank 3 on {HOST} was killed by SIGABRT after CUDA error: device-side assert triggered…"
    )
    assert headline(incident(behind(3, "its process exited with code 1: ValueError: no; none"))) == (
        f"Rank 3 on {HOST} exited with code 1: ValueError: no; none"
    )


def test_an_incident_that_is_over_is_in_the_past_tense() -> None:
    waits = behind(3, "it has not entered 'all_reduce' number 7 of group 'g', in which 2 ranks wait", "gpu-is-1")
    expected = "Rank 3 on gpu-is-1 had not entered all_reduce #7, in which 2 ranks waited"
    assert headline(incident(waits, phase=Phase.CLOSED)) == expected
    crash = behind(3, "its process exited with code 1: OSError: disk is full", kind=CulpritClass.DEAD)
    assert headline(incident(crash, phase=Phase.CLOSED)).endswith("disk is full")
    scene = Scene().run(20).hang(2)
    scene.until(lambda: scene.job.incidents and scene.incident.phase is Phase.CLOSED)
    assert headline(scene.incident) == "Rank 2 on host-0 hung in load_batch after step 18; 3 ranks waited"
    assert detail(scene.incident).startswith("When detected, it had been in section 'step'")


def test_a_hang_that_stacks_will_explain_is_stated_without_a_guess() -> None:
    reason = "Rank 0 on a has been in section 'step' for 11.0 s, over its limit of 10 s (1 other too); nobody knows."
    hangs = incident(reason=reason, phase=Phase.CAPTURING, section="step", affected=(0, 1))
    assert title(hangs) == "2 ranks make no progress in section 'step'; the cause is not known yet"
    assert detail(hangs).startswith("When detected, rank 0 on a had been in section 'step' for 11.0 s")


def test_a_silent_host_leads_once_its_silence_is_certain_or_it_has_not_answered() -> None:
    records = Scene(8, hosts=2, on_hang="log").run(30).cut_host(1).until_found()
    assert "host-1" not in headline(records.incident)
    records.until(lambda: records.incident.culprits)
    assert headline(records.incident) == "Node host-1 is silent: neither its launcher nor its 4 ranks report"
    assert next_action(records.incident)[:3:2] == (Action.RESTART_EXCLUDING_NODE, (4, 5, 6, 7))

    acts = Scene(8, hosts=2).run(30).cut_host(1)
    acts.ignored.add(DirectiveKind.RESTART)
    acts.until(lambda: acts.job.incidents and acts.incident.phase is Phase.ACTING)
    assert headline(acts.incident).startswith("Node host-1 did not answer in time")


def test_without_a_culprit_the_headline_is_the_explanation() -> None:
    reason = (
        "Rank 0 on a has been in section 'step' for 11.0 s, over its limit of 10 s (3 others too); all ranks are stuck "
        "in the same place ('all_reduce'), so no rank is named."
    )
    assert headline(incident(reason=reason)) == "All ranks are stuck in the same place ('all_reduce')"
    assert detail(incident(reason=reason)).endswith("over its limit of 10 s (3 others too).")


def test_a_job_that_simply_runs_has_no_headline_and_one_with_an_incident_has_its() -> None:
    scene = Scene(observe_only=True).run(10)
    assert job_view.summary(scene.job, scene.now)["headline"] == ""
    scene.hang(2).until_found()
    expected = "Rank 2 on host-0 hangs in its step after step 8; 3 ranks wait"
    assert job_view.summary(scene.job, scene.now)["headline"] == headline(scene.incident) == expected
    assert of_job(None, "no rank has reported yet") == "No rank has reported yet"
    json.dumps(shown(scene.job, scene.incident, scene.now))


@pytest.mark.parametrize(
    ("fields", "kind", "action", "ranks"),
    [
        ({}, CulpritClass.BEHIND, None, ()),
        ({"confirmed": False}, CulpritClass.BEHIND, None, ()),
        ({"phase": Phase.CLOSED}, CulpritClass.BEHIND, None, ()),
        ({"phase": Phase.ACTING}, CulpritClass.BEHIND, None, ()),
        ({"action": Action.LOG}, CulpritClass.BEHIND, Action.CAPTURE, ()),
        ({"action": Action.LOG, "confirmed": False}, CulpritClass.BEHIND, Action.CAPTURE, ()),
        ({"action": Action.CAPTURE}, CulpritClass.BEHIND, Action.RESTART, (3,)),
        ({"action": Action.CAPTURE, "phase": Phase.CAPTURING}, CulpritClass.BEHIND, None, ()),
        ({"action": Action.LOG}, CulpritClass.DEVICE_OR_NETWORK, Action.RESTART_EXCLUDING_NODE, (3,)),
        ({"action": Action.LOG, "phase": Phase.ACTING}, CulpritClass.HOST_SILENT, Action.RESTART_EXCLUDING_NODE, (3,)),
        ({"confirmed": False, "proof": Proof.STALLED}, CulpritClass.BEHIND, Action.RESTART, ()),
    ],
)
def test_the_next_action_is_an_order_only_where_rankwatch_does_not_act(
    fields: dict[str, object], kind: CulpritClass, action: Action | None, ranks: tuple[int, ...]
) -> None:
    found = next_action(incident(behind(3, "it is late", kind=kind), **fields))
    assert (found.action, found.ranks) == (action, ranks)
    assert found.text.endswith(".")
    assert found.text.startswith("Wait") or action is not None or fields.get("phase") is Phase.CLOSED


def test_each_runbook_link_leads_to_a_section_of_the_runbook() -> None:
    text = (Path(__file__).parents[4] / "docs/runbook.md").read_text()
    sections = {line.lstrip("# ").lower() for line in text.splitlines() if line.startswith("### ")}
    for kind in VerdictKind:
        page, _, section = next_action(incident(kind=kind)).runbook.partition("#")
        assert (page, section in sections) == ("runbook.html", True), section


def test_a_hang_is_stated_with_its_place_and_the_ranks_that_wait() -> None:
    scene = Scene(16, hosts=2).run(20).hang(13)
    scene.until(lambda: scene.job.incidents and scene.incident.phase is Phase.ACTING)
    assert headline(scene.incident) == "Rank 13 on host-1 hangs in load_batch after step 18; 15 ranks wait"
    late = incident(behind(2, "it is 3 steps behind, and the other rank waits for it"), section="data")
    assert headline(late) == f"Rank 2 on {HOST} hangs in section 'data', 3 steps behind; 1 rank waits"
    several = (
        behind(rank, "it is behind within the same step, and the 6 other ranks wait for it", "a") for rank in (4, 5)
    )
    assert headline(incident(*several, section="data")) == "Ranks 4-5 on a hang in section 'data'; 6 ranks wait"
    unknown = incident(behind(2, "it is behind within the same step, and the 3 other ranks wait for it"))
    assert "is behind within the same step" in headline(unknown)


def test_a_suspicion_is_stated_as_one() -> None:
    scene = Scene(16, hosts=2, reports_durations=True).run(60).hang(13).until_found()
    scene.until(lambda: scene.incident.phase is Phase.CONFIRMING)
    assert not scene.incident.confirmed
    assert headline(scene.incident) == "Rank 13 on host-1 may be hung in load_batch after step 58; 15 ranks wait"
    past = behind(3, "it is past its limit, and the other ranks are not")
    assert (
        headline(incident(past, confirmed=False))
        == f"Rank 3 on {HOST} may be past its limit, and the other ranks are not"
    )
    stuck = "it is stuck in the kernel (state D)"
    observed = behind(3, stuck, kind=CulpritClass.DEVICE_OR_NETWORK)
    assert headline(incident(observed, confirmed=False)) == f"Rank 3 on {HOST} is stuck in the kernel (state D)"


def test_what_to_do_follows_from_the_phase_of_a_restart() -> None:
    scene = Scene().run(20).hang(2)
    scene.until(lambda: scene.job.incidents and scene.incident.phase is Phase.ACTING)
    ordered = next_action(scene.incident)
    assert (ordered.text, ordered.until) == (
        "Wait: Rankwatch restarts the ranks.",
        scene.incident.phase_since + REPEAT_AFTER,
    )
    assert "repeats the order" in ordered.otherwise
    assert " hangs in " in headline(scene.incident)
    scene.until(lambda: scene.incident.phase is Phase.RECOVERING)
    assert next_action(scene.incident).text == "Wait: the ranks were restarted, and none has completed a step yet."
    assert headline(scene.incident) == "Rank 2 on host-0 hung in load_batch after step 18; 3 ranks waited"
    crash = Scene().run(20).die(1, exit_code=1).until_found()
    waited = next_action(crash.incident)
    assert waited.text == "Wait: the launchers restart the ranks."
    assert waited.until is not None
    assert waited.until > crash.now
    assert "launchers' logs" in waited.otherwise


def test_a_hang_that_is_recorded_or_suspected_offers_capture_and_restart_side_by_side() -> None:
    recorded = next_action(Scene(on_hang="log", observe_only=True).run(20).hang(2).until_found().incident)
    assert (recorded.action, recorded.also) == (Action.CAPTURE, (Action.RESTART,))
    suspicion = Scene(section_timeouts={}, reports_durations=True).run(60).hang(2).until_found()
    suspicion.until(lambda: suspicion.incident.phase is Phase.CONFIRMING)
    suspected = next_action(suspicion.incident)
    assert (suspected.action, suspected.also) == (None, (Action.RESTART, Action.CAPTURE))
    assert suspected.to_json()["also"] == ["restart", "capture"]
    assert "certain" not in suspected.text


def test_of_a_silent_host_a_command_shows_whether_it_is_up() -> None:
    scene = Scene(8, hosts=2, on_hang="log").run(30).cut_host(1).run(70)
    found = next_action(scene.incident)
    assert (found.action, found.command) == (Action.RESTART_EXCLUDING_NODE, "ping -c 3 -- host-1")
    assert reach("a b", slurm=True) == "ping -c 3 -- 'a b'; sinfo -n 'a b'"


def test_an_incident_as_shown_has_the_last_step_of_its_attempt_also_after_the_restart() -> None:
    scene = Scene(4).run(60).hang(1)
    reached = scene.job.furthest_iteration
    scene.until(lambda: scene.job.attempt == 2)
    assert (scene.job.furthest_iteration, shown(scene.job, scene.incident, scene.now)["furthest_iteration"]) == (
        None,
        reached,
    )
